"""Sign up, sign in and sign out."""

from __future__ import annotations

from shoal.client._http import segment
from shoal.client._noun import Noun
from shoal.core.people import (
    ConnectedService,
    InvitationCode,
    MailedCode,
    OwnerAccount,
    PasswordChange,
    PasswordLost,
    PasswordRecovery,
    SessionView,
    SignIn,
    SignUp,
    UserView,
    WorkspaceView,
)


class Auth(Noun):
    def sign_up(
        self, email: str, password: str, name: str = "", *, setup_code: str = "", invitation: str = ""
    ) -> SessionView:
        body = SignUp(email=email, password=password, name=name, setup_code=setup_code, invitation=invitation)
        return self._http.call(SessionView, "POST", "/auth/sign-up", body)

    def claim_owner(self, email: str, password: str, name: str = "") -> UserView:
        """Give the owner of a private server an address and a password."""
        body = OwnerAccount(email=email, password=password, name=name)
        return self._http.call(UserView, "POST", "/auth/owner", body)

    def sign_in(self, email: str, password: str) -> SessionView:
        return self._http.call(SessionView, "POST", "/auth/sign-in", SignIn(email=email, password=password))

    def join_workspace(self, code: str) -> WorkspaceView:
        """Accept an invitation with the account this client is signed in to."""
        return self._http.call(WorkspaceView, "POST", "/auth/invitation", InvitationCode(code=code))

    def sign_out(self) -> None:
        """End the session whose token this client holds."""
        self._http.send("POST", "/auth/sign-out")

    def change_password(self, old: str, new: str) -> None:
        self._http.send("POST", "/auth/password", body=PasswordChange(old_password=old, new_password=new))

    def send_reset(self, email: str) -> None:
        """Have a mail sent to a person who has lost their password. It contains a code for `recover`."""
        self._http.send("POST", "/auth/password/lost", body=PasswordLost(email=email))

    def recover(self, code: str, new_password: str) -> None:
        """Set a new password with the code from a mail."""
        self._http.send("POST", "/auth/password/recover", body=PasswordRecovery(code=code, new_password=new_password))

    def send_verification(self) -> None:
        """Have a mail sent with a code for `verify_email`."""
        self._http.send("POST", "/auth/email/send")

    def verify_email(self, code: str) -> None:
        """Prove with the code from a mail that the account's address is yours."""
        self._http.send("POST", "/auth/email/verify", body=MailedCode(code=code))

    def services(self) -> list[ConnectedService]:
        """List the server's sign-in services, each with your account there if it is connected."""
        return self._http.fetch(list[ConnectedService], "/auth/services")

    def disconnect_service(self, name: str) -> None:
        """Disconnect your account at a sign-in service."""
        self._http.send("DELETE", f"/auth/services/{segment(name)}")

    def me(self) -> UserView:
        return self._http.fetch(UserView, "/auth/me")

    def console_path(self) -> str:
        """Return a path on the server that signs a browser in; it works once, within two minutes."""
        return self._http.post_page(dict[str, str], "/enter")["path"]
