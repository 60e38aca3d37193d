"""Uploads from a browser: parts in any order and several at once, continued where they were interrupted."""

import html
import itertools
import os
import random
import time

from hypothesis import given
from hypothesis import strategies as st
from web_browser import BASE
from web_node import needs_node, run_node

from shoal.server.artifacts import interrupted_uploads
from shoal.server.scheduler.loop import Scheduler
from shoal.server.web.files import uploads

HEADERS = {"Origin": BASE}
DATA = bytes(range(256)) * 4


def begin(browser):
    return browser.request("POST", "/w/default/uploads", params={"size": len(DATA)}, headers=HEADERS).json()["id"]


def put(browser, ident, start, end, path="a.bin"):
    where = f"/w/default/uploads/{ident}"
    params = {"path": path, "offset": start}
    answer = browser.request("PUT", where, params=params, content=DATA[start:end], headers=HEADERS)
    assert answer.status_code == 200, answer.text


def finish(browser, ident):
    return browser.request("POST", f"/w/default/uploads/{ident}/dataset", params={"name": "up"}, headers=HEADERS)


def test_parts_may_come_in_any_order_and_twice(browser):
    ident = begin(browser)
    spans = [(start, min(start + 100, len(DATA))) for start in range(0, len(DATA), 100)] * 2
    random.Random(5).shuffle(spans)
    for span in spans:
        put(browser, ident, *span)
    assert finish(browser, ident).status_code == 201
    assert browser.get("/w/default/datasets/up/download?file=a.bin").content == DATA


def test_an_interrupted_upload_tells_what_it_has_and_is_refused_until_it_is_whole(browser, ctx, anna):
    ident = begin(browser)
    put(browser, ident, 0, 100)
    put(browser, ident, 300, len(DATA))
    put(browser, ident, 0, 0, path="empty.txt")
    found = browser.get(f"/w/default/uploads/{ident}").json()
    assert found["done"] == {"a.bin": [[0, 100], [300, len(DATA)]], "empty.txt": [[0, 0]]}
    refused = finish(browser, ident)
    assert refused.status_code == 409 and "A part of 'a.bin' has not arrived" in html.unescape(refused.text)
    with (ctx.layout.server_dir / "uploads" / anna.workspace_id / ident / "parts.jsonl").open("ab") as record:
        record.write(b'["a.bin", 100, 3')  # the server was killed while it wrote this
    assert browser.get(f"/w/default/uploads/{ident}").json()["done"] == found["done"]
    put(browser, ident, 100, 300)
    assert finish(browser, ident).status_code == 201
    assert browser.get("/w/default/datasets/up/download?file=a.bin").content == DATA


def test_an_interrupted_upload_expires_by_itself_a_day_after_its_last_part(browser, ctx, anna):
    old, new = begin(browser), begin(browser)
    folder = ctx.layout.server_dir / "uploads" / anna.workspace_id
    for ident in (old, new):
        put(browser, ident, 0, 100)
    longer_ago = time.time() - interrupted_uploads.KEPT_S - 60
    for path in (folder / old, folder / old / "parts.jsonl", folder / new):
        os.utime(path, (longer_ago, longer_ago))
    scheduler = Scheduler(ctx, "http://nowhere")
    scheduler._kept_house_at = float("-inf")
    scheduler._housekeep()
    assert [path.name for path in folder.iterdir()] == [new]
    assert browser.get(f"/w/default/uploads/{old}").status_code == 404


def test_an_upload_of_another_workspace_is_not_told_of(browser, app, ctx, berta):
    ident = begin(browser)
    assert browser.__class__(app).enter(ctx, berta).get(f"/w/default/uploads/{ident}").status_code == 404


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)).map(lambda p: (p[0], p[0] + p[1]))))
def test_merged_spans_cover_the_same_bytes_in_order(spans):
    found = uploads.merged(spans)
    assert {b for s, e in found for b in range(s, e)} == {b for s, e in spans for b in range(s, e)}
    assert all(before[1] < after[0] for before, after in itertools.pairwise(found))


SEND = """
import { missing, send } from "./transfer.js";
const kept = new Map(), listeners = new Set(), log = [];
globalThis.localStorage = { getItem: (k) => kept.get(k) ?? null, setItem: (k, v) => kept.set(k, v), removeItem: (k) => kept.delete(k) };
globalThis.addEventListener = (name, f) => { if (name === "beforeunload") listeners.add(f); };
globalThis.removeEventListener = (name, f) => listeners.delete(f);
const files = [{ path: "a", file: Object.assign(new Blob(["x".repeat(50)]), { lastModified: 1 }) }, { path: "b", file: Object.assign(new Blob([""]), { lastModified: 1 }) }];
const done = {}, part = 10;
let under = 0, most = 0, breaks = 3, asked = 0;
globalThis.fetch = async (url, { method, body }) => {
  const at = new URL(url, "http://x"), answer = (json, status = 200) => ({ ok: status < 400, status, text: async () => JSON.stringify(json) });
  if (method === "POST") { log.push("begin"); return answer({ id: "up_1", part }); }
  if (method === "GET") { log.push("resume"); return answer({ id: "up_1", part, done }); }
  most = Math.max(most, ++under);
  asked = Math.max(asked, listeners.size);
  await new Promise((ok) => setTimeout(ok, 5));
  under--;
  if (breaks-- === 0) return answer({ error: { message: "gone" } }, 404);
  const path = at.searchParams.get("path"), start = Number(at.searchParams.get("offset"));
  (done[path] ??= []).push([start, start + body.size]);
  return answer({});
};
const options = { purpose: "dataset", signal: new AbortController().signal, place: null, begun: () => {}, progress: (n) => log.push(n) };
try { await send("/u", files, options); } catch (error) { log.push(error.message); }
const before = JSON.stringify(done).length, left = missing(files, part, done).length;
await send("/u", files, options);
console.log(JSON.stringify({ log, most, asked, listening: listeners.size, left, kept: kept.size, done, before }));
"""


@needs_node
def test_the_page_sends_several_parts_at_once_and_continues_an_interrupted_upload(tmp_path):
    # app.js sets up a whole page when it is loaded.
    found = run_node(tmp_path, SEND, instead={"app.js": "export const signedOut = () => {};"})
    assert found["most"] > 1, "parts are sent side by side"
    assert "gone" in found["log"] and found["log"].count("begin") == 1 and found["log"].count("resume") == 1
    assert 0 < found["left"] < 6
    assert found["asked"] == 1 and found["listening"] == 0, "leaving is asked about while parts are on their way"
    assert found["kept"] == 0
    covered = {b for s, e in found["done"]["a"] for b in range(s, e)}
    assert covered == set(range(50)) and [0, 0] in found["done"]["b"]
    assert found["log"][-1] == 50
