"""TopSpin's datasets on Shoal's: each worker gets its share, each sample once per epoch; a restored run continues exactly."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from shoal.compat.topspin import seeds
from shoal.compat.topspin.helper import get_file_extension, get_files_in_folder, is_debugging, pydict_file_read
from shoal.compat.topspin.logs import Logger
from shoal.core.errors import UsageError
from shoal.train.data import Online, RecordReader, Records, Small, Variable

torch: Any = import_module("torch")

Collate = Callable[[list[Any]], Any] | None
Filter = Callable[[Any], bool] | None
_META = ".meta.palframe.pkl"


def parse_feat_folder(
    feat_path: str | Iterable[str] | None, valid_file_extension: Iterable[str] = ("pkl", "pydict")
) -> list[str]:
    """Return the feature files of a folder and its subfolders, of a file, or of a list of them. Missing ones are logged."""
    if not feat_path:
        return []
    if not isinstance(feat_path, str):
        return [file for path in feat_path for file in parse_feat_folder(path, valid_file_extension)]
    wanted = set(valid_file_extension)
    path = Path(feat_path)
    if path.is_dir():
        return _files_of(path.resolve(), wanted)
    if not path.is_file():
        Logger.error(f"'{feat_path}' does NOT exist.")
        return []
    if get_file_extension(feat_path) not in wanted:
        raise UsageError(f"{feat_path} is not a feature file", hint=f"their names end in {', '.join(sorted(wanted))}")
    return [feat_path]


def read_features(path: str | Path) -> Iterator[Any]:
    """Yield the samples of a feature file: one pickled list, or one Python value per line. Open only files you trust."""
    with Path(path).open("rb") as file:
        if file.read(1) == b"\x80":
            file.seek(0)
            yield from pickle.load(file)  # noqa: S301  what TopSpin's feature files are
            return
    yield from pydict_file_read(str(path))


def _with(make: Callable[[Any, int, Filter, dict[str, Any]], Any]) -> Callable[..., Any]:
    """Return a `get_batch_data` function with the signature that scripts use."""

    def get_batch_data(
        feat_path: Any,
        epoch_num: float | None,
        batch_size: int,
        worker_num: int,
        shuffle: bool,
        rank: int,
        world_size: int,
        pad_batch_data_func: Collate,
        sample_filter_func: Filter = None,
    ) -> Any:
        options = _options(epoch_num, worker_num, shuffle, rank, world_size, pad_batch_data_func)
        return make(feat_path, batch_size, sample_filter_func, options)

    return get_batch_data


def _small(feat_path: Any, batch_size: int, keep: Filter, options: dict[str, Any]) -> Small:
    return Small(iter(_samples(feat_path, keep)), batch_size, **options)


def _online(feat_path: Any, batch_size: int, keep: Filter, options: dict[str, Any]) -> Online:
    files = sorted(_some(parse_feat_folder(feat_path), feat_path))
    return Online(files, batch_size, read=_Reading(keep), **options)


small_get_batch_data = _with(_small)
"""Function that returns an iterable of (epoch, batch) over files that fit into memory."""
online_get_batch_data = _with(_online)
"""Function that returns an iterable of (epoch, batch) over files of any size, read one after the other."""


def variable_get_batch_data(
    feat_path: Any,
    epoch_num: float | None,
    batch_size: int | None,
    worker_num: int,
    shuffle: bool,
    rank: int,
    world_size: int,
    pad_batch_data_func: Collate = None,
    sample_filter_func: Filter = None,
    variable_batch_size: Mapping[str | int, int] | None = None,
    length_key_func: Callable[[Any], int] | None = None,
) -> Variable:
    """Return batches of samples of similar length, with the sizes of `variable_batch_size`; longer samples are left out."""
    if not variable_batch_size:
        raise UsageError("variable_batch_size must map lengths to batch sizes", hint='{"<=30": 100, "<=128": 30}')
    options = _options(epoch_num, worker_num, shuffle, rank, world_size, pad_batch_data_func)
    samples = iter(_samples(feat_path, sample_filter_func))
    return Variable(samples, variable_batch_size, length=length_key_func or len, drop_longer=True, **options)


class DatasetBase(torch.utils.data.Dataset):  # type: ignore[misc]
    """Base class of datasets. Override `initialization`, `get_feature` and `__len__`."""

    def __init__(self, feat_path: Any, global_GPU_worker_num: int = 1, global_GPU_worker_rank: int = 0):
        self.feat_path = feat_path
        self.global_GPU_worker_num, self.global_GPU_worker_id = global_GPU_worker_num, global_GPU_worker_rank
        self.initialization()

    def initialization(self) -> None:
        raise NotImplementedError(f"{type(self).__name__} needs an initialization()")

    def get_feature(self, index: int) -> Any:
        raise NotImplementedError(f"{type(self).__name__} needs a get_feature(index)")

    def __len__(self) -> int:
        raise NotImplementedError(f"{type(self).__name__} needs a __len__()")

    def __getitem__(self, index: int) -> Any:
        """Return a sample of this worker: of two workers, the first has indices 0 2 …, the second 1 3 …"""
        workers = self.global_GPU_worker_num
        return self.get_feature(((index // workers) * workers + self.global_GPU_worker_id) % len(self))


class BinDataset(DatasetBase):
    """Dataset of files of records, each with its length in four bytes before its bytes; memory-mapped, not loaded."""

    def initialization(self) -> None:
        self._reader = RecordReader(self.feat_path)

    def __len__(self) -> int:
        return len(self._reader)

    def decode_bytes_to_sample(self, data: bytes) -> Any:
        """Return the sample in a record, by default its unpickled value; may be overridden."""
        return pickle.loads(data)  # noqa: S301  what TopSpin's records are

    def get_feature(self, index: int) -> Any:
        return self.decode_bytes_to_sample(self._reader[index])


def get_batch_data_helper(
    dataset: Any,
    epoch_num: float | None,
    batch_size: int,
    pad_batch_data_func: Collate,
    shuffle: bool = True,
    dataloader_worker_num: int = 4,
) -> Small:
    """Return batches of a dataset. A DatasetBase is shared by the workers; any other dataset belongs to this worker alone."""
    rank, world = 0, 1
    if isinstance(dataset, DatasetBase):
        rank, world = dataset.global_GPU_worker_id, dataset.global_GPU_worker_num
        dataset = _Features(dataset)
    return Small(
        dataset, batch_size, **_options(epoch_num, dataloader_worker_num, shuffle, rank, world, pad_batch_data_func)
    )


def own_batches(
    dataset: Any, epoch_num: float | None, batch_size: int, worker_num: int, shuffle: bool, pad_batch_data_func: Collate
) -> Small:
    """Call get_batch_data_helper with the argument order of `topspin.dataset.helper`."""
    return get_batch_data_helper(dataset, epoch_num, batch_size, pad_batch_data_func, shuffle, worker_num)


def bindataset_get_batch_data(
    feat_path: str | list[str],
    epoch_num: float | None,
    batch_size: int,
    pad_batch_data_func: Collate,
    global_GPU_worker_num: int = 1,
    global_GPU_worker_rank: int = 0,
    dataloader_worker_num: int = 4,
    shuffle: bool = True,
    decode_bytes_to_sample: Callable[[bytes], Any] | None = None,
) -> Records:
    place = (global_GPU_worker_rank, global_GPU_worker_num)
    options = _options(epoch_num, dataloader_worker_num, shuffle, *place, pad_batch_data_func)
    return Records(feat_path, batch_size, decode=decode_bytes_to_sample or pickle.loads, **options)


class _Features:
    """Samples of a DatasetBase by number, independent of the worker."""

    def __init__(self, dataset: DatasetBase):
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Any:
        return self._dataset.get_feature(index)


class _Reading:
    def __init__(self, keep: Filter):
        self._keep = keep

    def __call__(self, path: Path) -> Iterator[Any]:
        return filter(self._keep, read_features(path)) if self._keep is not None else read_features(path)


def _options(
    epochs: float | None, workers: int, shuffle: bool, rank: int, world: int, collate: Collate
) -> dict[str, Any]:
    return {
        "epochs": epochs,
        "seed": seeds.of_run(),
        "shuffle": shuffle,
        "rank": rank,
        "world": world,
        "collate": collate,
        "workers": 0 if is_debugging() else workers,
    }


def _samples(feat_path: Any, keep: Filter) -> list[Any]:
    read = _Reading(keep)
    return [sample for file in _some(parse_feat_folder(feat_path), feat_path) for sample in read(Path(file))]


def _some(files: list[str], asked: Any) -> list[str]:
    if not files:
        raise UsageError(f"E3: there are no feature files at {asked}", hint=f"relative paths start at {Path.cwd()}")
    return files


def _files_of(folder: Path, wanted: set[str]) -> list[str]:
    """Return the files of a folder. Their list is cached in the folder, which may have a million files on a slow disk.

    The list is made again when the folder changes.
    """
    meta, changed = folder / _META, folder.stat().st_mtime_ns
    try:
        kept = pickle.loads(meta.read_bytes())  # noqa: S301  beside pickles that are loaded anyway
        if kept["changed"] == changed and kept["valid_file_extension"] == wanted:
            return [str(folder / name) for name in kept["files"]]
    except (OSError, KeyError, TypeError, ValueError, EOFError, pickle.UnpicklingError):
        pass
    files = list(get_files_in_folder(str(folder), wanted, recursive=True))
    names = [str(Path(file).relative_to(folder)) for file in files]
    has_folders = any("/" in name for name in names)
    if not has_folders:
        try:
            meta.touch()
            made = {"valid_file_extension": wanted, "files": names, "changed": folder.stat().st_mtime_ns}
            meta.write_bytes(pickle.dumps(made))
        except OSError as error:
            Logger.debug(f"the list of files could not be cached in {folder}: {error}")
    return files
