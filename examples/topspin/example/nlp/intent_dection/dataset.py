"""Batches of word numbers and labels, shared out among the workers when training."""

import torch
import torch.distributed as dist

from palframe.pytorch.dataset.offline_smalldataset import get_batch_data as _get_batch_data


def _pad_batch_data(batch):
    word_ids, labels = zip(*batch, strict=True)
    return torch.tensor(word_ids), torch.tensor(labels)


def get_batch_data(param, feat_files, epoch_num, is_training):
    yield from _get_batch_data(
        feat_path=feat_files,
        epoch_num=epoch_num,
        batch_size=param.batch_size,
        worker_num=0,
        shuffle=is_training,
        rank=dist.get_rank() if is_training else 0,
        world_size=dist.get_world_size() if is_training else 1,
        pad_batch_data_func=_pad_batch_data,
    )
