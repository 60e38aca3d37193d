"""The whole story on a server that people share, with nothing but a browser; and what goes wrong on the way."""

import io
import re
import zipfile

import pytest

pytest.importorskip("playwright.sync_api", reason="needs playwright")
from browser_actions import drop
from playwright.sync_api import expect
from watched import Watched

from shoal.testing.live import live_server
from shoal.testing.patience import patient

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

SCRIPT = """
import argparse, json, math, pathlib, time
import shoal

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--steps", type=int)
options = parser.parse_args()
rows = pathlib.Path("/input/words/words.csv").read_text().splitlines()
run = shoal.init(config={**vars(options), "rows": len(rows)}, parallel="none")
for step in range(1, options.steps + 1):
    run.step(loss=3 * math.exp(-step * options.lr), lr=options.lr)
    print(f"step {step} of {options.steps}", flush=True)
    if step == 5:
        out = pathlib.Path("/output-checkpoint/step-5")
        out.mkdir(parents=True)
        (out / "model.bin").write_bytes(b"weights")
        (out / "trainer_state.json").write_text(json.dumps({"global_step": 5, "log_history": []}))
    time.sleep(0.1)
"""
MAIL, PASSWORD = "ada@example.org", "long enough, this"


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A server of several people: nobody has an account yet."""
    home = tmp_path_factory.mktemp("shared") / "home"
    with live_server(home, preflight=True, shared=True) as server:
        yield server


@pytest.fixture(scope="module")
def base(shared):
    return f"http://127.0.0.1:{(shared.layout.server_dir / 'last_port').read_text()}"


@pytest.fixture(scope="module")
def person(chromium, shots, shared, base):
    """One browser through the whole file: the story goes on from test to test."""
    watched = Watched(chromium, shots)
    yield watched
    watched.context.close()


@pytest.fixture
def page(person):
    person.problems.clear()
    yield person.page
    assert person.problems == []


def in_a_zip(**files):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, text in files.items():
            archive.writestr(f"project/{name.replace('_py', '.py')}", text)
    return out.getvalue()


def start(page, name, lr, steps):
    page.get_by_label("Name of the job").fill(name)
    page.get_by_label("All of them in one line").fill(f"--lr {lr} --steps {steps}")
    expect(page.locator("#preview .command code")).to_contain_text(f"run {name} ")
    expect(page.locator("#preview .command code")).to_contain_text(f"--lr {lr} --steps {steps}")
    page.get_by_role("button", name="Start the job").click()
    expect(page).to_have_url(re.compile(f"/w/team/jobs/{name}$"))


def test_1_sign_up_and_make_a_workspace(page, base, shared):
    page.goto(f"{base}/")
    expect(page).to_have_url(re.compile("/sign-in"))
    page.get_by_role("link", name="Sign up").click()
    page.get_by_label("E-mail").fill(MAIL)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_label("Setup code").fill(shared.layout.setup_code.read_text().strip())
    page.get_by_role("button", name="Make an account").click()
    expect(page.get_by_role("heading", name="Home")).to_be_visible()
    page.get_by_role("link", name="Workspaces").click()
    expect(page).to_have_url(re.compile("/workspaces$"))
    page.wait_for_load_state()
    page.get_by_role("button", name="New workspace").click()
    page.get_by_label("Name", exact=True).fill("team")
    page.get_by_role("button", name="Create").click()
    expect(page).to_have_url(re.compile("/w/team/jobs$"))


def test_2_drop_a_dataset(page, base):
    page.goto(f"{base}/w/team/datasets")
    page.get_by_role("button", name="Upload").click()
    drop(page, "words.csv", b"id,text\n1,one\n2,two\n")
    expect(page.get_by_label("Name", exact=True)).to_have_value("words")
    page.locator("#upload").get_by_role("button", name="Upload").click()
    page.get_by_role("link", name="words").click()
    page.get_by_role("link", name="words.csv").click()
    expect(page.locator(".view td", has_text="two")).to_be_visible()


def test_3_start_a_job_by_drag_and_drop_and_watch_it(page, person, base, tmp_path):
    page.goto(f"{base}/w/team/jobs")
    page.get_by_role("link", name="New job").first.click()
    page.wait_for_url("**/jobs/new")
    drop(page, "project.zip", in_a_zip(train_py=SCRIPT, README="hello"))
    expect(page.get_by_label("Script to run")).to_have_value("train.py")
    page.get_by_role("checkbox", name="words").check()
    start(page, "slow", 0.01, 600)
    expect(page.locator("#job-head .status")).to_have_text("running", timeout=patient(60_000))

    page.get_by_role("link", name="Metrics").click()
    latest = page.locator(".chart", has_text="loss").locator("header output")
    expect(page.locator(".chart", has_text="loss").locator("canvas")).to_be_visible(timeout=patient(30_000))
    before = latest.inner_text()
    expect(latest).not_to_have_text(before, timeout=patient(20_000))

    page.get_by_role("link", name="Logs").click()
    lines = page.locator("#log .ln")
    expect(lines.first).to_be_attached(timeout=patient(20_000))
    count = lines.count()
    expect(lines.nth(count + 3)).to_be_attached(timeout=patient(20_000))

    page.get_by_role("navigation", name="Job").get_by_role("link", name="Checkpoints").click()
    with page.expect_download() as download:
        page.get_by_role("link", name=re.compile("Download step-5")).click(timeout=patient(30_000))
    download.value.save_as(tmp_path / "got.zip")
    assert any(name.endswith("step-5/model.bin") for name in zipfile.ZipFile(tmp_path / "got.zip").namelist())


def test_4_the_server_restarts_under_a_page_that_goes_on(page, shared, base):
    page.goto(f"{base}/w/team/jobs/slow/metrics")
    latest = page.locator(".chart", has_text="loss").locator("header output")
    expect(latest).not_to_be_empty(timeout=patient(30_000))
    shared.kill()
    expect(page.locator("#offline")).to_be_visible(timeout=patient(20_000))
    before = latest.inner_text()
    shared.start()
    expect(page.locator("#offline")).to_be_hidden(timeout=patient(30_000))
    expect(latest).not_to_have_text(before, timeout=patient(30_000))


def test_5_clone_it_and_compare_the_two(page, base):
    page.goto(f"{base}/w/team/jobs/slow")
    page.get_by_role("link", name="Clone").click()
    expect(page.get_by_label("Name of the job")).to_have_value("slow-2")
    start(page, "quick", 0.1, 20)
    expect(page.locator("#job-head .status")).to_have_text("succeeded", timeout=patient(60_000))
    page.goto(f"{base}/w/team/jobs")
    for name in ("slow", "quick"):
        page.get_by_role("checkbox", name=f"Choose {name} to compare").check()
    page.get_by_role("button", name="Compare 2").click()
    expect(page.get_by_role("heading", name="Compare")).to_be_visible()
    expect(page.locator("#differences")).to_contain_text("--lr")
    chart = page.locator(".chart", has_text="loss")
    expect(chart.locator("canvas")).to_be_visible()
    for name in ("slow", "quick"):
        expect(chart.locator(".plot-legend, .legend").first).to_contain_text(name)


def test_6_share_it_as_a_file_that_opens_without_a_network(page, person, base, chromium, shots, tmp_path):
    page.goto(f"{base}/w/team/jobs/quick")
    with page.expect_download() as download:
        page.get_by_role("link", name="Share").click()
    download.value.save_as(tmp_path / "run.html")
    reader = Watched(chromium, shots)
    try:
        reader.context.set_offline(True)
        reader.page.goto((tmp_path / "run.html").as_uri())
        expect(reader.page.get_by_role("heading", name="quick").first).to_be_visible()
        expect(reader.page.locator("canvas").first).to_be_visible()
        expect(reader.page.get_by_text("step 20 of 20")).to_be_visible()
        expect(reader.page.get_by_text("argparse").first).to_be_attached()
        reader.shoot("shared-file")
        assert reader.problems == []
    finally:
        reader.context.close()


# The head of the page is brought up to date, as it is every second while a job runs.
REFRESH = """() => new Promise((done) => {
  document.addEventListener("htmx:afterRequest", () => done(), { once: true });
  document.body.dispatchEvent(new CustomEvent("shoal:job"));
})"""


def test_7_a_job_deleted_in_another_tab_is_said_to_be_gone(page, person, base):
    page.goto(f"{base}/w/team/jobs/quick")
    other = person.context.new_page()
    other.goto(f"{base}/w/team/jobs/quick")
    other.get_by_role("button", name="Delete").click()
    other.evaluate(REFRESH)
    with other.expect_response(lambda answer: "part=head" in answer.url):  # what was held back is made up for
        other.locator("#ask").get_by_role("button", name="Cancel").click()
    other.get_by_role("button", name="Delete").click()
    other.evaluate(REFRESH)
    other.locator("#ask").get_by_role("button", name="Delete").click()
    expect(other).to_have_url(re.compile("/w/team/jobs$"))
    other.close()
    page.get_by_role("button", name="Delete").click()
    page.locator("#ask").get_by_role("button", name="Delete").click()
    expect(page.locator(".toast.bad")).to_contain_text("no job 'quick'")
    page.reload()
    expect(page.get_by_role("heading", name="Not found")).to_be_visible()


def test_8_a_session_that_ends_under_a_form_loses_nothing(page, person, base):
    page.goto(f"{base}/w/team/secrets")
    page.get_by_label("Name", exact=True).fill("TOKEN")
    page.get_by_label("Value").fill("typed with care")
    person.context.clear_cookies()
    page.get_by_role("button", name="Set").click()
    expect(page.get_by_text("Your session has ended")).to_be_visible()
    with person.context.expect_page() as opened:
        page.locator("#signed-out").get_by_role("link", name="Sign in").click()
    tab = opened.value
    tab.get_by_label("E-mail").fill(MAIL)
    tab.get_by_label("Password", exact=True).fill(PASSWORD)
    tab.get_by_role("button", name="Sign in").click()
    expect(tab.get_by_role("heading", name="Home")).to_be_visible()
    tab.close()
    page.locator("#signed-out").get_by_role("button", name="Stay here").click()
    expect(page.get_by_label("Value")).to_have_value("typed with care")
    page.get_by_role("button", name="Set").click()
    expect(page.locator("#secrets")).to_contain_text("TOKEN")


def test_9_an_upload_beyond_the_limit_is_refused_and_the_form_stays(page, base):
    page.goto(f"{base}/admin/limits")
    page.get_by_label("Code of a job").fill("1")
    page.get_by_role("button", name="Save").click()
    expect(page.locator(".toast")).to_contain_text("Saved")
    page.goto(f"{base}/w/team/jobs/new")
    page.get_by_label("Name of the job").fill("too-large")
    drop(page, "weights.py", size=2 << 20)
    expect(page.locator(".bring .form-error")).to_contain_text("1 MiB")
    expect(page.get_by_label("Name of the job")).to_have_value("too-large")
    drop(page, "train.py", SCRIPT.encode())
    expect(page.get_by_label("Script to run")).to_have_value("train.py")
    expect(page.locator(".bring .form-error")).to_be_empty()


def test_another_sites_page_can_change_nothing(page, person, base):
    target = f"{base}/w/team/jobs/slow/stop"
    html = f'<form method="post" action="{target}"><button>win a prize</button></form>'
    person.context.route("http://prize.example/**", lambda route: route.fulfill(content_type="text/html", body=html))
    page.goto("http://prize.example/")
    page.get_by_role("button", name="win a prize").click()
    expect(page.locator("body")).to_contain_text("came from another site")
    for headers in ({"Origin": "http://prize.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}):
        answer = person.context.request.post(target, headers=headers)
        assert (answer.status, "another site" in answer.text()) == (403, True), headers
    page.goto(f"{base}/w/team/jobs/slow")
    expect(page.locator("#job-head .status")).to_have_text(re.compile("running|succeeded"))
