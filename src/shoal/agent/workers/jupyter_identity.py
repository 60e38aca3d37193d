"""Authentication of a job's JupyterLab: a request needs the token, which only the Shoal server knows.

Jupyter's own provider would write the token into every page for its scripts; here the Shoal server adds it to each request
instead.
"""

from __future__ import annotations

import hmac
import os
from pathlib import Path
from typing import Any

from jupyter_server.auth.identity import IdentityProvider, User
from traitlets import default

TOKEN_FILE = "SHOAL_JUPYTER_TOKEN_FILE"


class Identity(IdentityProvider):
    """Identity provider that accepts only requests with the token from TOKEN_FILE."""

    def __init__(self, **options: Any):
        super().__init__(**options)
        self._wanted = f"token {Path(os.environ[TOKEN_FILE]).read_text()}".encode()

    @default("token")
    def _token_default(self) -> str:
        return ""  # the token that is written into pages

    @property
    def auth_enabled(self) -> bool:
        return True

    @property
    def login_available(self) -> bool:
        return False

    def get_user(self, handler: Any) -> User | None:
        shown = handler.request.headers.get("Authorization", "")
        if not hmac.compare_digest(shown.encode("utf-8", "replace"), self._wanted):
            return None
        handler._token_authenticated = True  # cookies are not used, so cross-site requests cannot be forged
        return User("shoal", "shoal", "Shoal", "S")
