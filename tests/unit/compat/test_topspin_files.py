"""Files that TopSpin scripts read and write: feature files, records, model files, figures, logs."""

import pickle
import struct
import threading
from collections import defaultdict
from pathlib import Path

import pytest
import torch

from shoal.compat.topspin import datasets, draw_figure, saved, seeds, stopper, stopping
from shoal.compat.topspin.batches import as_call, as_result
from shoal.compat.topspin.figures import Figures, draw_all, usual_ending
from shoal.compat.topspin.helper import (
    command,
    get_files_in_folder,
    is_none_or_empty,
    next_batch,
    pydict_file_read,
    pydict_file_write,
    timeout,
    to_readable_time,
)
from shoal.compat.topspin.logs import Logger, Timer
from shoal.compat.topspin.measure import Measure
from shoal.core.errors import NotFound, UsageError

START = {".png": b"\x89PNG", ".svg": b"<svg"}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    torch.set_num_threads(1)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(seeds, "_of_run", 5)
    yield
    Logger.close()


def pickled(name, samples):
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_bytes(pickle.dumps(samples))
    return name


def seen(batches):
    return [[int(x) for x in batch] for _, batch in batches]


def test_small_data_is_shared_out_once_per_epoch_in_the_order_of_the_run():
    file = pickled("feat/a.pkl", list(range(10)))

    def of(rank):
        return list(datasets.small_get_batch_data(file, 2, 2, 0, True, rank, 2, torch.tensor))

    first, second = of(0), of(1)
    assert [epoch for epoch, _ in first] == [0] * 3 + [1] * 3
    for epoch in (0, 1):
        mine = [x for e, batch in first + second if e == epoch for x in batch.tolist()]
        assert sorted(mine) == list(range(10))
    assert seen(of(0)) == seen(first)


def test_samples_are_filtered_and_a_folder_is_all_its_files():
    pickled("feat/a.pkl", [1, 2, 3])
    Path("feat/b.pydict").write_text("4\n5\n")
    Path("feat/other.txt").touch()
    found = datasets.small_get_batch_data("feat", 1, 8, 0, False, 0, 1, torch.tensor, lambda x: x != 2)
    assert seen(found) == [[1, 3, 4, 5]]


def test_files_of_a_folder_are_listed_again_when_it_changes():
    pickled("feat/a.pkl", [1])
    first = datasets.parse_feat_folder("feat")
    assert datasets.parse_feat_folder("feat") == first and len(first) == 1
    assert Path("feat/.meta.palframe.pkl").is_file()
    pickled("feat/b.pkl", [2])
    assert [Path(f).name for f in datasets.parse_feat_folder(["feat", "feat/a.pkl"])] == ["a.pkl", "b.pkl", "a.pkl"]


def test_feature_files_that_are_not_there_are_refused_as_e3():
    with pytest.raises(UsageError, match="E3: there are no feature files at none"):
        datasets.small_get_batch_data("none", 1, 8, 0, False, 0, 1, None)
    Path("x.csv").touch()
    with pytest.raises(UsageError, match="is not a feature file"):
        datasets.parse_feat_folder("x.csv")


def test_data_is_streamed_file_by_file_once_over_the_workers():
    for n in range(3):
        pickled(f"feat/{n}.pkl", list(range(10 * n, 10 * n + 4)))

    def of(rank):
        made = datasets.online_get_batch_data("feat", 1, 2, 0, True, rank, 2, torch.tensor, lambda x: x != 0)
        return [x for batch in seen(made) for x in batch]

    assert sorted(of(0) + of(1)) == [1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23]


def test_batches_by_length_leave_out_what_is_too_long():
    file = pickled("a.pkl", ["a" * n for n in (1, 2, 3, 8, 9, 99)])
    sizes = {"<=3": 3, "<=10": 1}
    made = datasets.variable_get_batch_data(
        file, 1, None, 0, True, 0, 1, lambda b: b, None, variable_batch_size=sizes, length_key_func=len
    )
    batches = [sorted(map(len, batch)) for _, batch in made]
    assert sorted(batches) == [[1, 2, 3], [8], [9]]
    with pytest.raises(UsageError, match="variable_batch_size"):
        datasets.variable_get_batch_data(file, 1, None, 0, True, 0, 1)


def records(name, values):
    packed = [pickle.dumps(v) for v in values]
    Path(name).write_bytes(b"".join(struct.pack("i", len(p)) + p for p in packed))
    return name


def test_records_are_read_by_number_as_each_worker_has_them():
    file = records("a.bin", list("abcde"))
    one = datasets.BinDataset(file)
    assert [one[i] for i in range(5)] == list("abcde")
    second = datasets.BinDataset(file, global_GPU_worker_num=2, global_GPU_worker_rank=1)
    assert [second[i] for i in range(5)] == ["b", "b", "d", "d", "a"]


def test_records_come_once_per_epoch_over_the_workers():
    file = records("a.bin", list(range(7)))

    def of(rank):
        made = datasets.bindataset_get_batch_data(file, 1, 2, torch.tensor, 2, rank, 0)
        return [x for batch in seen(made) for x in batch]

    assert sorted(of(0) + of(1)) == list(range(7))


def test_a_dataset_of_the_users_own_is_shared_out_too():
    class Squares(datasets.DatasetBase):
        def initialization(self):
            self.values = [x * x for x in self.feat_path]

        def get_feature(self, index):
            return self.values[index]

        def __len__(self):
            return len(self.values)

    def of(rank):
        made = datasets.get_batch_data_helper(Squares(range(6), 2, rank), 1, 2, torch.tensor, True, 0)
        return [x for batch in seen(made) for x in batch]

    assert sorted(of(0) + of(1)) == [0, 1, 4, 9, 16, 25]


def info(seen_samples, **more):
    return {"model_seen_sample_num": seen_samples, "model": {"w": torch.tensor([float(seen_samples)])}, **more}


def test_model_files_are_listed_the_newest_last_and_the_best_is_spared():
    Path("model").mkdir()
    for n in (10, 20, 30, 40):
        name = saved.save("model", info(n), keep=2, keep_also="model_000000000000010.pt")
    assert name == "model_000000000000040.pt"
    assert Path("model/checkpoint").read_text().split() == [f"model_{n:015}.pt" for n in (10, 30, 40)]
    assert saved.load(saved.newest("model"))["model"]["w"].item() == 40
    assert sorted(p.name for p in Path("model").glob("*.pt")) == [f"model_{n:015}.pt" for n in (10, 30, 40)]


def test_model_files_of_topspin_itself_can_be_loaded():
    import numpy

    figures = defaultdict(list, {"loss": [1.0], "vali_file.x": [[0, numpy.float64(0.5)]]})
    theirs = info(7, opt_evaluate_error=numpy.float64(-0.5), figure_data=figures)
    theirs["model"] = {"module.w": torch.ones(1)}
    torch.save(theirs, "m.pt")
    found = saved.load("m.pt")
    assert list(found["model"]) == ["w"] and found["opt_evaluate_error"] == -0.5


def test_what_is_no_model_file_is_refused_in_words():
    with pytest.raises(UsageError, match=r"there is no model file none\.pt"):
        saved.load("none.pt")
    torch.save({"weights": 1}, "m.pt")
    with pytest.raises(UsageError, match="is not a model file"):
        saved.load("m.pt")
    Path("junk.pt").write_bytes(b"junk")
    with pytest.raises(UsageError, match="cannot be loaded"):
        saved.load("junk.pt")


def test_a_batch_is_called_with_its_elements_and_the_dict_at_its_end():
    assert as_call([1, 2]) == ([1, 2], {})
    assert as_call((1, {"a": 2})) == ([1], {"a": 2})
    assert as_call(torch.ones(3))[1] == {}


def test_what_train_one_batch_returns_is_understood_in_all_versions():
    loss, call = torch.tensor(1.0), as_call([torch.ones(4, 2), {"mask": torch.ones(9)}])
    assert as_result(loss, call)["samples"] == 4
    assert as_result((loss, 7), call)["samples"] == 7
    found = as_result({"loss": loss, "figure": {"f1": 0.5}}, as_call([{"x": torch.ones(3)}]))
    assert found["samples"] == 3 and found["figures"] == {"f1": 0.5}
    with pytest.raises(UsageError, match="returned a float"):
        as_result(1.0, call)
    with pytest.raises(UsageError, match="contains no tensor"):
        as_result(loss, as_call(["text"]))


def test_figures_are_drawn_smoothed_and_listed():
    figures = Figures()
    for step in range(40):
        figures.add({"f1": step / 40})
    figures.add_evaluation("vali_file.x", 20, 0.5)
    data = figures.with_losses([1 / (n + 1) for n in range(40)])
    Path("work/run.x/meta").mkdir(parents=True)
    names = {p.name for p in draw_all("work/run.x", data, [1, 8])}
    end = usual_ending()
    assert {f"run.x.train.loss{end}", f"run.x.train.loss.smoothed_8{end}", f"run.x.train.f1{end}"} <= names
    assert all(p.read_bytes().startswith(START[end]) for p in Path("work/run.x").glob(f"*{end}"))
    again = Figures()
    again.load_state_dict(figures.state_dict())
    assert again.lines == figures.lines


def test_the_figure_tool_lists_cuts_and_draws(capsys):
    Path("run/meta").mkdir(parents=True)
    Path("run/meta/figure.data").write_bytes(pickle.dumps({"loss": [3.0, 2.0, 1.0], "f1": [0.1, 0.2, 0.3]}))
    assert draw_figure.main(["--path_work", "run", "--show"]) == 0
    assert "0    : f1" in (shown := capsys.readouterr().out) and "x.range: [0, 3]" in shown
    assert draw_figure.main(["--path_work", "run", "--line_IDs", "1", "--x_from", "1", "--out_file", "o.png"]) == 0
    assert Path(f"o{usual_ending()}").read_bytes().startswith(START[usual_ending()])
    assert draw_figure.main(["--path_work", "run", "--out_file", "all.svg"]) == 0
    assert all(Path(name).read_bytes().startswith(START[".svg"]) for name in ("all.svg", "all.loss.svg"))
    assert draw_figure.main(["--path_work", "run", "--line_IDs", "7", "--out_file", "o.png"]) == 2
    assert "there is no line 7" in capsys.readouterr().err
    assert draw_figure.main(["--path_work", "none", "--show"]) == 3


def test_runs_and_batches_are_stopped_by_their_folder_in_either_form(capsys):
    run, batch = Path("work/run.x/meta/run.lock"), Path("work/batch_task.run_id_12.tag/.run.lock")
    for lock in (run, batch):
        lock.parent.mkdir(parents=True)
        lock.touch()
    assert stopper.main(["work/run.x"]) == 0 and not run.exists()
    run.touch()
    assert stopper.main(["--path_work", "work/run.x"]) == 0 and not run.exists()
    stopping.stop_train(12)
    assert not batch.exists()
    assert stopper.main(["work/run.x"]) == 3
    assert "is not running" in capsys.readouterr().err
    assert stopper.main(["work/none"]) == 3 and stopper.main([]) == 2
    with pytest.raises(NotFound, match="there is no batch 1 "):
        stopping.stop_train(1)


def test_measures_are_rounded_dicts():
    found = Measure.calc_precision_recall_fvalue([0, 0, 1, 1], [0, 1, 1, 1])
    assert found[0] == {"recall": 0.5, "precision": 1.0, "f": 0.6667}
    assert found["accuracy"] == 0.75 and found["weighted_f"] == 0.7333
    assert Measure.calc_WER(["a b c d"], ["A x c"]) == 0.5
    assert Measure.calc_classification([0, 1], [0, 1])["kappa_coefficient"] == 1


def test_the_weighted_f_is_that_of_topspins_own_test():
    found = Measure.calc_classification([0, 1, 1, 2, 2, 2], [0, 0, 1, 2, 1, 1])
    assert found["weighted_f"] == 0.4945
    assert found["kappa_coefficient"] == pytest.approx(0.28)


def test_the_log_has_levels_and_goes_to_files(capsys):
    Logger.set_level(1)
    Logger.debug("hidden")
    Logger.info("shown", 1)
    Logger.copy_to("copy")
    Logger.error("twice")
    Logger.reset_outstream("log")
    Logger.warn("only there")
    told = capsys.readouterr().out
    assert "INFO: shown 1" in told and "ERR: twice" in told and "hidden" not in told and "only there" not in told
    assert "WARN: only there" in Path("log").read_text() and "twice" in Path("copy").read_text()
    with Timer() as timer:
        pass
    assert timer.duration >= 0


def test_small_helpers_do_what_their_names_say():
    assert list(next_batch(range(5), 2)) == [[0, 1], [2, 3], [4]]
    assert is_none_or_empty("") and is_none_or_empty(None) and not is_none_or_empty(0)
    assert to_readable_time(90061.5) == "1 d 1 h 1 m 1.500 s"
    assert command("echo out; echo err >&2; exit 3", capture_output=True) == (3, "out\n", "err\n")
    pydict_file_write([{"a": 1}, {"a": 2}], "x.pydict", print_log=False)
    assert list(pydict_file_read("x.pydict", 1)) == [{"a": 1}]
    assert [Path(f).name for f in get_files_in_folder(".", ["pydict"])] == ["x.pydict"]
    assert timeout(lambda a, b: a + b, [1, 2], 5) == 3
    gate = threading.Event()
    with pytest.raises(TimeoutError):
        timeout(gate.wait, [], 0.01)
    gate.set()
