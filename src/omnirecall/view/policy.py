"""What the browser is told that the page may load."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

HERE = Path(__file__).parent
PLOT_STYLE = """:where(.plot-d6a7b5) {
  --plot-background: white;
  display: block;
  height: auto;
  height: intrinsic;
  max-width: 100%;
}
:where(.plot-d6a7b5 text),
:where(.plot-d6a7b5 tspan) {
  white-space: pre;
}"""
"""The style sheet that Observable Plot puts into its pictures, which the policy allows by its hash."""


def content_policy(framed: bool = True) -> str:
    """The Content-Security-Policy: scripts, styles, media and data from this server only, and nothing inline but PLOT_STYLE."""
    digest = base64.b64encode(hashlib.sha256(PLOT_STYLE.encode()).digest()).decode()
    rules = [
        "default-src 'none'",
        "script-src 'self'",
        f"style-src 'self' 'sha256-{digest}'",
        "img-src 'self'",
        "media-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
    ]
    return "; ".join([*rules, "frame-ancestors 'none'"] if framed else rules)


def static_files() -> dict[str, Path]:
    """The page's own files by their addresses."""
    folder = HERE / "static"
    return {
        f"static/{path.relative_to(folder).as_posix()}": path for path in sorted(folder.rglob("*")) if path.is_file()
    }
