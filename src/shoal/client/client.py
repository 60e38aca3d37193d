"""`Client`: everything the server offers, one attribute per noun."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any

from shoal.client._http import Http
from shoal.client.auth import Auth
from shoal.client.config import DEFAULT_WORKSPACE
from shoal.client.git_sources import GitSources
from shoal.client.jobs import Jobs
from shoal.client.keys import Keys
from shoal.client.machines import Machines
from shoal.client.members import Members
from shoal.client.notices import Notices
from shoal.client.registries import Registries
from shoal.client.secrets import Secrets
from shoal.client.sources import Sources
from shoal.client.store import Store
from shoal.client.workspaces import Workspaces

if TYPE_CHECKING:
    from shoal.client.audit import Audit
    from shoal.client.billing import Billing
    from shoal.client.bugs import Bugs
    from shoal.client.checkpoints import Checkpoints
    from shoal.client.datasets import Datasets
    from shoal.client.diffs import Diffs
    from shoal.client.engines import Engines
    from shoal.client.leases import Leases
    from shoal.client.metrics import Metrics
    from shoal.client.pool import Pool
    from shoal.client.preflights import Preflights
    from shoal.client.queue import Queue
    from shoal.client.runs import Runs
    from shoal.client.snapshots import Snapshots
    from shoal.client.swarms import Swarms
    from shoal.client.sweeps import Sweeps
    from shoal.client.upkeep import Upkeep
    from shoal.client.users import Users
    from shoal.core.server_address import ServerAddress


class Client:
    """Client for one server and one workspace. Close it, or use it as a context manager.

    url        address of the server
    key        API key, or the token of a session
    workspace  name or id of the workspace to work in
    locate     returns the present URL of a server that may restart at another one

    Example: `with Client("https://shoal.example.org", key) as client: print(client.jobs.list())`
    """

    def __init__(
        self,
        url: str,
        key: str | None = None,
        workspace: str = DEFAULT_WORKSPACE,
        *,
        locate: Callable[[], str | None] | None = None,
    ):
        self.workspace = workspace
        self._http = http = Http(url, key, locate=locate)
        self.auth = Auth(http)
        self.keys = Keys(http)
        self.workspaces = Workspaces(http)
        self.machines = Machines(http)
        self.members = Members(http, workspace)
        self.secrets = Secrets(http, workspace)
        self.notices = Notices(http, workspace)
        self.registries = Registries(http, workspace)
        self.git_sources = GitSources(http, workspace)
        self.sources = Sources(http, workspace)
        self.store = Store(http, workspace)
        self.jobs = Jobs(http, workspace)

    # These import many schemas, which would slow the start of every command; few commands need them.

    @cached_property
    def datasets(self) -> Datasets:
        from shoal.client.datasets import Datasets

        return Datasets(self._http, self.workspace)

    @cached_property
    def checkpoints(self) -> Checkpoints:
        from shoal.client.checkpoints import Checkpoints

        return Checkpoints(self._http, self.workspace)

    @cached_property
    def metrics(self) -> Metrics:
        from shoal.client.metrics import Metrics

        return Metrics(self._http, self.workspace)

    @cached_property
    def diffs(self) -> Diffs:
        from shoal.client.diffs import Diffs

        return Diffs(self._http, self.workspace)

    @cached_property
    def bugs(self) -> Bugs:
        from shoal.client.bugs import Bugs

        return Bugs(self._http, self.workspace)

    @cached_property
    def queue(self) -> Queue:
        from shoal.client.queue import Queue

        return Queue(self._http, self.workspace)

    @cached_property
    def preflights(self) -> Preflights:
        from shoal.client.preflights import Preflights

        return Preflights(self._http, self.workspace)

    @cached_property
    def audit(self) -> Audit:
        from shoal.client.audit import Audit

        return Audit(self._http)

    @cached_property
    def billing(self) -> Billing:
        from shoal.client.billing import Billing

        return Billing(self._http, self.workspace)

    @cached_property
    def runs(self) -> Runs:
        from shoal.client.runs import Runs

        return Runs(self._http, self.workspace)

    @cached_property
    def snapshots(self) -> Snapshots:
        from shoal.client.snapshots import Snapshots

        return Snapshots(self._http, self.workspace)

    @cached_property
    def swarms(self) -> Swarms:
        from shoal.client.swarms import Swarms

        return Swarms(self._http, self.workspace)

    @cached_property
    def sweeps(self) -> Sweeps:
        from shoal.client.sweeps import Sweeps

        return Sweeps(self._http, self.workspace)

    @cached_property
    def engines(self) -> Engines:
        from shoal.client.engines import Engines

        return Engines(self._http)

    @cached_property
    def pool(self) -> Pool:
        from shoal.client.pool import Pool

        return Pool(self._http)

    @cached_property
    def upkeep(self) -> Upkeep:
        from shoal.client.upkeep import Upkeep

        return Upkeep(self._http)

    @cached_property
    def users(self) -> Users:
        from shoal.client.users import Users

        return Users(self._http)

    @cached_property
    def leases(self) -> Leases:
        from shoal.client.leases import Leases

        return Leases(self._http, self.workspace)

    @property
    def url(self) -> str:
        return self._http.url

    def health(self) -> dict[str, Any]:
        """Return status, version and whether this is a private local server. Needs no key."""
        return self._http.fetch(dict[str, Any], "/health")

    def address(self) -> ServerAddress:
        """Return the URL at which others reach the server, and the fingerprint of its private CA."""
        from shoal.core.errors import NotFound
        from shoal.core.server_address import ServerAddress

        try:
            return self._http.fetch(ServerAddress, "/address")
        except NotFound:  # a server of an earlier version
            return ServerAddress(url=self.url)

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
