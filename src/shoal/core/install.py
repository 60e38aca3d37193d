"""Commands that install Shoal: its distributions are named `shoal-train` and `shoal-compat`; `shoal` on PyPI is another project."""

from __future__ import annotations

from urllib.parse import urlsplit

PACKAGE = "shoal-train"
COMPAT = "shoal-compat"
"""Modules for scripts of other platforms: NetmindMixins, topspin, palframe, and the command flexai."""
INSTALLER_PATH = "/install.py"
CA_PATH = "/api/v1/ca"
_LOADER = (
    "import hashlib,ssl,sys,urllib.request as u;"
    "get=lambda p,c:u.build_opener(u.HTTPSHandler(context=c)).open(sys.argv[1]+p,timeout=30).read().decode();"
    # The CA is fetched from a server that is not known yet, and checked by its fingerprint. All else is fetched by this CA.
    f"ca=get('{CA_PATH}',ssl._create_unverified_context());"
    "hashlib.sha256(ssl.PEM_cert_to_DER_cert(ca)).hexdigest()==sys.argv[2] or "
    "sys.exit('error: this is another server than the one you mean');"
    f"exec(get('{INSTALLER_PATH}',ssl.create_default_context(cadata=ca)))"
)


def install_command(
    *extras: str,
    server: str | None = None,
    fingerprint: str | None = None,
    invitation: str = "",
    compat: bool = False,
    quiet: bool = False,
) -> str:
    """Return the command line that installs Shoal. With a server's URL, the packages come from it, in its own version.

    pip does not know a private CA. Then the line is a program that checks the CA by its `fingerprint` and runs the server's
    installer, which gives the CA to pip; with the code of an `invitation` it signs up as well.

    >>> install_command("swarm")
    "pip install 'shoal-train[swarm]'"
    """
    wanted = f"'{PACKAGE}[{','.join(extras)}]'" if extras else PACKAGE
    if server and fingerprint:
        packages = [wanted] * bool(extras) + [COMPAT] * compat
        more = " ".join([*packages, *(["--join", invitation] if invitation else [])])
        digest = fingerprint.partition(":")[2]
        return f'python3 -c "{_LOADER}" {server.rstrip("/")} {digest} {more}'.rstrip()
    words = ["pip install", *(["-q"] if quiet else [])]
    if server:
        url = urlsplit(server.rstrip("/"))
        words.append(f"--extra-index-url {url.scheme}://{url.netloc}{url.path}/simple/")
        if url.scheme == "http" and url.hostname not in ("localhost", "127.0.0.1", "::1"):
            words.append(f"--trusted-host {url.hostname}")
    return " ".join([*words, wanted, *([COMPAT] if compat else [])])
