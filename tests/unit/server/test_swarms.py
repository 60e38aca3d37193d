"""Swarms on the server: who may join, what they may fetch, what a keeper's words become, what is shown to whom."""

import json
import math
import time
from datetime import timedelta

import pytest
from web_browser import Browser

from shoal import __version__
from shoal.core.checkpoints import CheckpointView
from shoal.core.invitations import Invitation, new_key, seal
from shoal.core.schema import utcnow
from shoal.core.swarm_views import INVITATION_HEADER
from shoal.server.artifacts import upkeep
from shoal.server.models.checkpoints import Checkpoint
from shoal.server.models.sources import Source
from shoal.server.models.swarm import Swarm, SwarmInvitation, SwarmPeer
from shoal.server.swarms import reports as swarm_reports
from shoal.server.swarms import swarm_rows
from shoal.testing.extras import needs
from shoal.testing.server import AppClient, add_source

pytestmark = needs("hivemind")

W = "/workspaces/default/swarms"


@pytest.fixture
def made(ctx, as_anna, anna):
    """A swarm of Anna's: the answer to its creation."""
    spec = {
        "name": "reef",
        "entry": ["train.py"],
        "source_id": add_source(ctx, anna),
        "target_batch_size": 8,
        "keep_last": 2,
    }
    answer = as_anna.post(W, spec)
    assert answer.status_code == 201, answer.text
    return answer.json()


@pytest.fixture
def guest(app, made):
    return AppClient(app, headers={INVITATION_HEADER: made["invitation"]["token"]}, address="127.0.0.1")


def wish(offer, **changes):
    asked = {
        "name": "laptop",
        "public_key": new_key()[1],
        "version": __version__,
        "code": offer["code"],
        "time": time.time(),
    }
    return asked | changes


def enter(app, guest, **changes):
    """A peer that has joined: what it was told, and a client of its own."""
    joined = guest.post("/swarm/join", wish(guest.get("/swarm/offer").json(), **changes)).json()
    return joined, AppClient(app, joined["token"])


def report(ctx, made, *events):
    """Handle lines like the watch; return whether the coordinator is ready."""
    swarm_id = made["swarm"]["id"]
    folder = swarm_rows.folder(ctx, swarm_id)
    with ctx.db.read() as session:
        end, lines = session.get_one(Swarm, swarm_id).coordinator_read, []
    for event in events:
        line = event if isinstance(event, bytes) else json.dumps(event).encode()
        end += len(line) + 1
        lines.append((line, end))
    return swarm_reports.store_reports(ctx, swarm_id, folder, lines)


def error(answer):
    assert not answer.is_success, answer.text
    return answer.json()["error"]


def test_a_swarm_comes_with_an_invitation_and_its_key_stays_here(made, ctx):
    assert made["swarm"]["status"] == "running"
    assert made["invitation"]["token"].startswith("shoalw_")
    with ctx.db.read() as session:
        swarm = session.get_one(Swarm, made["swarm"]["id"])
        private = swarm_rows.signing_key(ctx, swarm)
    assert private not in json.dumps(made) and private.encode() not in swarm.sealed_key


def test_names_are_unique_and_scripts_must_be_there(as_anna, made, ctx, anna):
    again = {
        "name": "reef",
        "entry": ["train.py"],
        "source_id": made["swarm"]["spec"]["source_id"],
        "target_batch_size": 8,
    }
    assert error(as_anna.post(W, again))["code"] == "name_taken"
    assert error(as_anna.post(W, again | {"name": "other", "entry": ["gone.py"]}))["code"] == "entry_not_found"
    assert "target_batch_size" in error(as_anna.post(W, again | {"name": "o", "target_batch_size": 0}))["message"]


def test_a_guest_sees_what_it_takes_and_becomes_a_peer(app, guest, as_anna, made):
    offer = guest.get("/swarm/offer").json()
    assert offer["swarm"] == "reef" and offer["size"] > 0 and abs(offer["time"] - time.time()) < 5
    joined, _ = enter(app, guest)
    assert joined["peer"] in joined["orders"]["members"]
    assert joined["owner_key"] == made["swarm"]["owner_key"]
    [peer] = as_anna.get(f"{W}/reef/peers").json()
    assert (peer["name"], peer["state"]) == ("laptop", "joining")
    assert "joined with invitation 'first'" in as_anna.get(f"{W}/reef").json()["events"][-1]["message"]


def test_a_revoked_an_expired_and_a_full_invitation_let_nobody_in(app, guest, as_anna, made, ctx):
    offer = guest.get("/swarm/offer").json()
    one = as_anna.post(f"{W}/reef/invitations", {"name": "one", "max_peers": 1}).json()
    single = AppClient(app, headers={INVITATION_HEADER: one["token"]})
    assert single.post("/swarm/join", wish(offer)).is_success
    assert "limit of 1 peer" in error(single.post("/swarm/join", wish(offer)))["message"]
    assert as_anna.delete(f"{W}/reef/invitations/first").status_code == 204
    told = error(guest.post("/swarm/join", wish(offer)))
    assert "revoked" in told["message"] and "shoal swarm invite" in told["hint"]
    short = as_anna.post(f"{W}/reef/invitations", {"name": "short", "expires_in_s": 1}).json()
    past = utcnow() - timedelta(days=3)
    ctx.db.write(lambda s: setattr(s.get_one(SwarmInvitation, short["id"]), "expires_at", past))
    late = AppClient(app, headers={INVITATION_HEADER: short["token"]})
    ctx.db.write(lambda s: setattr(s.get_one(SwarmInvitation, short["id"]), "revoked_at", utcnow()))
    assert error(late.get("/swarm/offer"))["code"] == "key_expired"
    shown = {i["name"]: i["is_open"] for i in as_anna.get(f"{W}/reef/invitations").json()}
    assert shown == {"first": False, "one": False, "short": False}
    assert error(as_anna.delete(f"{W}/reef/invitations/none"))["code"] == "not_found"


def test_an_invitation_ends_by_itself(app, as_anna, made, ctx):
    past = utcnow().replace(microsecond=0) - timedelta(days=3)
    ctx.db.write(lambda s: setattr(s.get_one(SwarmInvitation, made["invitation"]["id"]), "expires_at", past))
    with ctx.db.read() as session:
        swarm = session.get_one(Swarm, made["swarm"]["id"])
    told = Invitation(made["invitation"]["id"], int(past.timestamp()), swarm.owner_key)
    late = AppClient(app, headers={INVITATION_HEADER: seal(told, swarm_rows.signing_key(ctx, swarm))})
    answer = error(late.get("/swarm/offer"))
    assert answer["code"] == "key_expired" and f"valid until {past:%Y-%m-%d %H:%M} UTC" in answer["message"]


def test_an_invitation_of_a_deleted_swarm_is_not_known(guest, as_anna, made):
    assert error(as_anna.delete(f"{W}/reef"))["code"] == "not_allowed_now"
    as_anna.post(f"{W}/reef/stop")
    assert as_anna.delete(f"{W}/reef").status_code == 204
    assert error(guest.get("/swarm/offer"))["code"] == "not_signed_in"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"version": "9.9.9"}, "runs on"),
        ({"code": "0" * 64}, "differs from that of swarm"),
        ({"time": time.time() - 3600}, "behind the server's"),
        ({"public_key": "xyz"}, "64 hex digits"),
        ({"name": "../up"}, "not a usable peer name"),
    ],
    ids=["version", "code", "clock", "key", "name"],
)
def test_who_does_not_fit_is_told_why_and_is_no_peer(guest, as_anna, made, change, text):
    told = error(guest.post("/swarm/join", wish(guest.get("/swarm/offer").json(), **change)))
    assert text in told["message"]
    assert as_anna.get(f"{W}/reef/peers").json() == []


def test_a_peer_fetches_its_code_and_nothing_else(app, guest, ctx, anna, made):
    joined, peer = enter(app, guest)
    other = add_source(ctx, anna, b"print('private')\n")
    with ctx.db.read() as session:
        hidden = ctx.store.get_manifest(session.get_one(Source, other).manifest_id).files[0].chunks[0].hash
        hidden_manifest = session.get_one(Source, other).manifest_id
    manifest = peer.get(f"/swarm/manifests/{joined['code']}").json()
    chunk = manifest["files"][0]["chunks"][0]["hash"]
    assert peer.get(f"/swarm/chunks/{chunk}").content == b"print('hello')\n"
    assert peer.post("/swarm/fetch", {"hashes": [chunk]}).is_success
    assert peer.get(f"/swarm/manifests/{hidden_manifest}").status_code == 404
    assert peer.get(f"/swarm/chunks/{hidden}").status_code == 404
    assert peer.post("/swarm/fetch", {"hashes": [chunk, hidden]}).status_code == 404
    assert peer.get("/workspaces").status_code == 401


def test_a_kicked_peer_is_out_for_good_and_the_others_stay(app, guest, as_anna, made):
    first, one = enter(app, guest)
    second, two = enter(app, guest, name="desk")
    assert as_anna.post(f"{W}/reef/peers/laptop/kick", {"reason": "noise", "revoke": True}).json()["state"] == "kicked"
    told = one.post("/swarm/beat", {"state": "training"}).json()
    assert told["kicked"] and "noise" in told["reason"]
    assert one.get(f"/swarm/manifests/{first['code']}").status_code == 403
    orders = two.post("/swarm/beat", {"state": "training"}).json()
    assert list(orders["members"]) == [second["peer"]] and not orders["kicked"]
    assert "revoked" in error(guest.get("/swarm/offer"))["message"]
    assert error(as_anna.post(f"{W}/reef/peers/nobody/kick", {}))["code"] == "not_found"


def test_a_silent_peer_is_shown_as_lost_and_its_token_ends(app, guest, as_anna, ctx, made):
    joined, peer = enter(app, guest)
    peer.post("/swarm/beat", {"state": "training"})
    assert as_anna.get(f"{W}/reef").json()["peers"] == 1
    as_anna.post(W, made["swarm"]["spec"] | {"name": "empty"})
    assert {s["name"]: s["peers"] for s in as_anna.get(W).json()} == {"empty": 0, "reef": 1}
    assert error(as_anna.post(f"{W}/reef/resume"))["code"] == "not_allowed_now"

    def age(session):
        row = session.get_one(SwarmPeer, joined["peer"])
        row.seen_at, row.token_expires_at = utcnow() - timedelta(minutes=2), utcnow() - timedelta(seconds=1)

    ctx.db.write(age)
    assert as_anna.get(f"{W}/reef/peers").json()[0]["state"] == "lost"
    assert as_anna.get(f"{W}/reef").json()["peers"] == 0
    assert error(peer.post("/swarm/beat", {"state": "training"}))["code"] == "not_signed_in"


def test_leaving_is_told_and_beats_bring_a_peer_back(app, guest, as_anna, made):
    _, peer = enter(app, guest)
    assert peer.post("/swarm/leave").status_code == 204
    assert as_anna.get(f"{W}/reef/peers").json()[0]["state"] == "left"
    peer.post("/swarm/beat", {"state": "training"})
    assert as_anna.get(f"{W}/reef/peers").json()[0]["state"] == "training"


def test_a_stopped_swarm_sends_its_peers_home_and_a_resumed_one_is_another_run(app, guest, as_anna, made):
    joined, peer = enter(app, guest)
    as_anna.post(f"{W}/reef/stop")
    as_anna.post(f"{W}/reef/stop")
    assert peer.post("/swarm/beat", {"state": "training"}).json()["status"] == "stopped"
    assert "is stopped" in error(guest.post("/swarm/join", wish(guest.get("/swarm/offer").json())))["message"]
    resumed = as_anna.post(f"{W}/reef/resume").json()
    assert resumed["status"] == "running" and resumed["run_id"] != joined["orders"]["run_id"]
    assert sum(e["kind"] == "stopped" for e in resumed["events"]) == 1


def test_what_a_keeper_tells_is_shown(app, guest, as_anna, ctx, made):
    joined, _ = enter(app, guest)
    ready = report(
        ctx,
        made,
        {"event": "ready", "addresses": ["/ip4/127.0.0.1/tcp/1/p2p/Qm"]},
        {"event": "progress", "round": 3, "samples": 96, "loss": 2.5, "alive": 1, "performance": 12.5,
         "peers": [{"peer": joined["peer"], "samples": 96, "samples_per_s": 12.5, "loss": 2.5, "round": 3, "state": "training"},
                   {"peer": "peer_unknown", "samples": 9}]},
        {"event": "round", "round": 3, "seconds": 1.5, "members": [joined["peer"]], "averaged": 1.0, "bytes": 1000},
        {"event": "something new"},
        b"not even json",
        {"event": "progress", "round": -1},
        {"event": "rollback", "to_round": 2, "reason": "the loss exploded"},
    )  # fmt: skip
    assert ready
    view = as_anna.get(f"{W}/reef").json()
    assert (view["round"], view["samples"], view["loss"], view["performance"]) == (3, 96, 2.5, 12.5)
    assert view["keeper"]["addresses"] == ["/ip4/127.0.0.1/tcp/1/p2p/Qm"]
    assert "rolled back to round 2" in view["events"][-1]["message"]
    [row] = as_anna.get(f"{W}/reef/rounds").json()
    assert (row["seconds"], row["loss"], row["averaged"], row["members"]) == (1.5, 2.5, 1.0, [joined["peer"]])
    [peer] = as_anna.get(f"{W}/reef/peers").json()
    assert (peer["state"], peer["samples"], peer["share"]) == ("training", 96, 1.0)


def test_a_loss_that_is_no_number_breaks_nothing(as_anna, ctx, made):
    report(ctx, made, {"event": "progress", "round": 1, "loss": 3.0, "samples": 8, "alive": 1})
    report(
        ctx,
        made,
        {"event": "progress", "round": 2, "loss": math.nan, "samples": 16, "alive": 1, "performance": math.inf},
    )
    view = as_anna.get(f"{W}/reef").json()
    assert (view["round"], view["samples"], view["loss"], view["performance"]) == (2, 16, 3.0, None)


def test_a_keepers_folder_becomes_a_checkpoint_and_few_stay(app, guest, as_anna, ctx, made):
    folder = swarm_rows.folder(ctx, made["swarm"]["id"]) / "checkpoints"
    for number in (1, 2, 3):
        (folder / str(number)).mkdir(parents=True)
        (folder / str(number) / "model.safetensors").write_bytes(b"weights" * number)
        facts = {"round": number, "samples": 8 * number, "fingerprint": "shape"}
        (folder / str(number) / "swarm.json").write_text(json.dumps(facts))
        report(
            ctx,
            made,
            {"event": "checkpoint", "path": str(folder / str(number)), "round": number, "hash": "h", "loss": 1.0},
        )
    found = [CheckpointView.model_validate(c) for c in as_anna.get(f"{W}/reef/checkpoints").json()]
    assert [c.name for c in found] == ["reef-round-2", "reef-round-3"]
    assert as_anna.get("/workspaces/default/checkpoints/reef-round-3").json()["step"] == 3
    upkeep.gc(ctx, grace_s=0.0, dry_run=False)
    joined, peer = enter(app, guest)
    assert joined["orders"]["has_snapshot"] and joined["orders"]["fingerprint"] == "shape"
    snapshot = peer.get("/swarm/snapshot").json()
    assert (snapshot["round"], snapshot["samples"], snapshot["hash"]) == (3, 24, "h")
    path = f"/swarm/snapshot/{snapshot['id']}/model.safetensors"
    assert peer.get(path).content == b"weights" * 3
    peer.headers["Range"] = "bytes=7-13"
    assert peer.get(path).content == b"weights"
    assert peer.get(f"/swarm/snapshot/{snapshot['id']}/../../x").status_code == 404
    ctx.db.write(lambda s: setattr(s.get_one(Checkpoint, snapshot["id"]), "damaged", True))
    assert peer.get("/swarm/snapshot").json()["round"] == 2
    assert as_anna.get(f"{W}/reef").json()["checkpoint"] == "reef-round-2"


def test_a_folder_elsewhere_is_not_kept(as_anna, ctx, made, tmp_path):
    (tmp_path / "swarm.json").write_text("{}")
    report(ctx, made, {"event": "checkpoint", "path": str(tmp_path), "round": 1, "hash": "h"})
    view = as_anna.get(f"{W}/reef").json()
    assert view["checkpoints"] == 0 and view["events"][-1]["kind"] == "checkpoint_failed"


def test_code_and_data_of_a_swarm_outlive_a_clean_up(app, guest, ctx, made):
    upkeep.gc(ctx, grace_s=0.0, dry_run=False)
    joined, peer = enter(app, guest)
    assert peer.get(f"/swarm/manifests/{joined['code']}").is_success


def test_a_workspace_with_a_running_swarm_is_not_deleted(as_anna, made):
    assert "running swarm: reef" in error(as_anna.delete("/workspaces/default"))["message"]


def test_the_page_behind_a_link_shows_numbers_only_where_they_are_public(app, as_anna, ctx, anna, made):
    report(ctx, made, {"event": "progress", "round": 7, "samples": 4321, "loss": 2.5, "alive": 1, "performance": 1.0})
    page = Browser(app).get(f"/join/{made['invitation']['token']}")
    assert f"shoal swarm join http://127.0.0.1:8000/join/{made['invitation']['token']}" in page.text
    assert "4,321" not in page.text
    spec = made["swarm"]["spec"] | {"name": "open-reef", "public": True}
    public = as_anna.post(W, spec).json()
    report(ctx, public, {"event": "progress", "round": 7, "samples": 4321, "loss": 2.5, "alive": 1, "performance": 1.0})
    assert "4,321" in Browser(app).get(f"/join/{public['invitation']['token']}").text
    as_anna.delete(f"{W}/open-reef/invitations/first")
    gone = Browser(app).get(f"/join/{public['invitation']['token']}")
    assert gone.status_code == 404 and "revoked" in gone.text and "4,321" not in gone.text


def liar(round_, by=("peer_x", "peer_y")):
    return {"round": round_, "by": list(by), "of": 3}


def test_a_peer_that_lies_is_told_of_and_removed_with_the_evidence(app, guest, as_anna, anna, ctx, made, monkeypatch):
    letters = []
    monkeypatch.setattr(ctx.mail, "send", letters.append)
    joined, peer = enter(app, guest)
    honest, _ = enter(app, guest, name="desk")
    credit = {joined["peer"]: 0, honest["peer"]: 64}
    rounds = [{"event": "round", "round": n, "seconds": 1.0, "members": [], "credit": credit} for n in (1, 2)]
    claims = [{"peer": p, "samples": 64, "state": "training"} for p in credit]
    progress = {"event": "progress", "round": 2, "samples": 64, "loss": 1.0, "alive": 2, "peers": claims}
    report(ctx, made, progress, rounds[0], {"event": "reported", "peer": joined["peer"], **liar(1)})
    view = as_anna.get(f"{W}/reef").json()
    assert view["events"][-1]["kind"] == "reported"
    assert "reported by 2 of 3 peers that judged it in round 1" in view["events"][-1]["message"]
    assert [row["name"] for row in view["reported"]] == ["laptop"] and letters == []
    assert "is reported by other peers" in Browser(app).enter(ctx, anna).get("/w/default/swarms/reef").text

    marks = [liar(1), liar(2), liar(4)]
    report(ctx, made, rounds[1], {"event": "kicked", "peer": joined["peer"], "reason": "it lies", "evidence": marks})
    view = as_anna.get(f"{W}/reef").json()
    assert view["events"][-1]["data"]["evidence"] == marks
    (row,) = view["reported"]
    assert (row["state"], row["reason"], row["evidence"]) == ("kicked", "it lies", marks)
    shares = {p["name"]: (p["samples"], p["accepted"], p["share"]) for p in as_anna.get(f"{W}/reef/peers").json()}
    assert shares == {"laptop": (64, 0, 0.0), "desk": (64, 128, 1.0)}
    assert peer.post("/swarm/beat", {"state": "training"}).json()["kicked"]
    assert "was removed: it lies" in Browser(app).enter(ctx, anna).get("/w/default/swarms/reef").text
    (letter,) = letters
    assert letter.to == made["swarm"]["created_by"] and letter.subject == "Peer 'laptop' was removed from swarm 'reef'"
    assert "reported by 2 of 3 peers that judged it in round 4" in letter.text
    letter.on_failed("no such host")
    assert "no such host" in as_anna.get(f"{W}/reef").json()["events"][-1]["message"]


def test_evidence_from_a_coordinator_is_bounded(app, guest, as_anna, ctx, made):
    joined, _ = enter(app, guest)
    for bad in ({"credit": {joined["peer"]: -5}}, {"credit": {joined["peer"]: 1 << 70}}):
        report(ctx, made, {"event": "round", "round": 1, **bad})
    report(ctx, made, {"event": "kicked", "peer": joined["peer"], "evidence": [liar(1)] * 1000})
    (peer,) = as_anna.get(f"{W}/reef/peers").json()
    assert (peer["accepted"], peer["state"]) == (0, "joining")
