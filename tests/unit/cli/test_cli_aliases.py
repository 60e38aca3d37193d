"""Names from other programs reach our commands, hide none of them, and unknown options get our name for them."""

import pytest

from shoal.cli.main import app, main
from shoal.cli.shared.aliases import TOP, VERBS, expand
from shoal.cli.shared.errors import HABITS


def test_no_alias_hides_a_command_and_every_one_leads_to_one():
    for alias, command in TOP.items():
        assert alias not in app, alias
        assert command[1] in app[command[0]], command
    nouns = [name for name in app if not name.startswith("-")]
    for verb, meant in VERBS.items():
        assert any(one in app[noun] for one in meant for noun in nouns), verb


@pytest.mark.parametrize(
    ("typed", "runs"),
    [
        ("ps", "training list"),
        ("logs x -f", "training logs x -f"),
        ("rm x", "training delete x"),
        ("training cancel x", "training stop x"),
        ("training ls --json", "training list --json"),
        ("dataset pull d", "dataset fetch d"),
        ("pool delete m", "pool remove m"),
        ("secret rm s", "secret delete s"),
        ("run ls", "run ls"),  # a script of that name
        ("training run ls -- ps", "training run ls -- ps"),
        ("--json ps", "--json ps"),  # expanded once the options are known
        ("nonsense", "nonsense"),
        ("", ""),
    ],
)
def test_an_alias_is_replaced_in_the_first_two_words_only(typed, runs):
    assert expand(app, typed.split()) == tuple(runs.split())


def test_the_help_of_an_alias_is_the_help_of_its_command(capsys):
    main(["logs", "--help"])
    assert "Usage: shoal training logs" in capsys.readouterr().out


def test_options_before_an_alias_are_read(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path))
    monkeypatch.setenv("SHOAL_NO_AUTOSTART", "1")
    assert main(["--json", "ps"]) != 0
    assert "No server is running" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--gpus", "--num_gpus", "--nnodes", "--timeout"])
def test_an_option_of_another_program_gets_the_name_it_has_here(option, capsys):
    assert main(["training", "run", "x", option, "2", "--", "t.py"]) == 2
    assert f"Did you mean {HABITS[option.replace('_', '-')]}?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--device", "nvidia"], 'Did you mean "cuda"?'),
        (["--device", "AMD"], 'Did you mean "rocm"?'),
        (["--device", "GPU"], 'Did you mean "gpu"?'),
        (["--device", "cuda:0"], 'Did you mean "cuda"?'),
        (["--gpu", "8"], "--accels 8 for 8 per node, with --device gpu; or --gpu H100:8"),
        (["--accels", "0"], "--accels 0 is not possible; the smallest value is 1.\nhint: --accels 1\n"),
        (["--nodes", "20000"], "--nodes 20000 is not possible; the largest value is 10000.\nhint: --nodes 10000\n"),
        (["--grace", "2h"], "--grace 7200 is not possible; the largest value is 3600.\nhint: --grace 3600\n"),
    ],
)
def test_wrong_sizes_and_kinds_of_slots_are_answered_with_what_is_possible(words, said, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHOAL_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("SHOAL_API_KEY", "none")
    (tmp_path / "t.py").touch()
    assert main(["training", "run", "x", *words, "--", "t.py"]) == 2
    assert said in capsys.readouterr().err


def test_a_length_of_time_without_a_unit_is_refused(capsys):
    assert main(["training", "run", "x", "--time-limit", "5", "--", "t.py"]) == 2
    said = capsys.readouterr().err
    assert "--time-limit 5 has no unit" in said
    assert "5m" in said
