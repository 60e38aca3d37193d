"""`python -m shoal.server`: one process, one data directory, until SIGTERM."""

from __future__ import annotations

import argparse
import gc
import sys
from pathlib import Path

from shoal.core.errors import ShoalError
from shoal.core.settings import Layout, ServerSettings, home
from shoal.server.edge import exposure


def main() -> int:
    parser = argparse.ArgumentParser(prog="shoal.server", description="Run a Shoal server in the foreground.")
    parser.add_argument("--home", type=Path, default=None, help="data directory (default: SHOAL_HOME or ~/.shoal)")
    parser.add_argument("--host", default=None, help="address to listen on")
    parser.add_argument("--port", type=int, default=None, help="port to listen on; 0 picks one")
    parser.add_argument("--tls-cert", default=None, help="certificate chain (PEM file) for https, or 'auto'")
    parser.add_argument("--tls-key", default=None, help="private key (PEM file) of the certificate")
    parser.add_argument("--behind-proxy", default=None, help="address of the reverse proxy in front of this server")
    parser.add_argument("--allow-clear-text", action="store_true", help="allow plain http beyond loopback")
    parser.add_argument("--slots", type=_slots, default=None, help="slots this machine offers, or 'auto'")
    parser.add_argument("--store", default=None, help="s3:// URL to keep chunks at, instead of the data directory")
    parser.add_argument("--job-sandbox", default=None, help="weakest sandbox level of jobs: S0, S1, S2 or S3")
    parser.add_argument("--take-over", action="store_true", help="this copy of a data directory replaces the original")
    parser.add_argument(
        "--new-secret-key", action="store_true", help="replace a lost secret.key; secrets must be set again"
    )
    args = parser.parse_args()
    layout = Layout((args.home or home()).absolute())
    given = {"host": args.host, "port": args.port, "slots": args.slots, "store": args.store}
    given |= {name: getattr(args, name) for name in ("job_sandbox", "tls_cert", "tls_key", "behind_proxy")}
    given["allow_clear_text"] = args.allow_clear_text or None
    try:
        settings = ServerSettings.load(layout, **given)
        exposure.check(settings)
        gc.disable()  # imported modules are never garbage; `run` enables it again when the server is ready
        from shoal.server.backup.upgrades import copy_settings
        from shoal.server.run import run

        if any(value is not None for value in given.values()):
            copy_settings(layout)
            settings.save(layout)
        return run(layout, settings, take_over=args.take_over, new_secret_key=args.new_secret_key)
    except ShoalError as error:
        print(f"error: {error.message}" + (f"\n{error.hint}" if error.hint else ""), file=sys.stderr)
        return error.exit_code


def _slots(text: str) -> int | str:
    if text != "auto" and not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number nor 'auto'")
    return text if text == "auto" else int(text)


if __name__ == "__main__":
    sys.exit(main())
