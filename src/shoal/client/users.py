"""Accounts of the server, for its admins."""

from __future__ import annotations

from shoal.client._http import segment
from shoal.client._noun import Noun
from shoal.core.admin import AccountChange, AccountCreate, AccountView, PasswordReset

Listed = list[AccountView]


class Users(Noun):
    def list(self) -> Listed:
        """List all accounts, sorted by e-mail address."""
        return self._http.fetch(list[AccountView], "/admin/users")

    def add(self, email: str, password: str, name: str = "", *, admin: bool = False) -> AccountView:
        """Create an account for another person."""
        body = AccountCreate(email=email, password=password, name=name, is_admin=admin)
        return self._http.call(AccountView, "POST", "/admin/users", body)

    def change(self, user: str, *, admin: bool | None = None, disabled: bool | None = None) -> AccountView:
        """Change an account, given by e-mail address or user id. Omitted properties are left unchanged."""
        body = AccountChange(is_admin=admin, disabled=disabled)
        return self._http.call(AccountView, "PATCH", f"/admin/users/{segment(user)}", body)

    def reset_password(self, user: str, password: str) -> AccountView:
        """Set a new password for a person who has lost theirs, and end all their sessions."""
        return self._http.call(
            AccountView, "PUT", f"/admin/users/{segment(user)}/password", PasswordReset(password=password)
        )
