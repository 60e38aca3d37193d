"""TopSpin (versions 4, 5 and 1.2.1) on Shoal's own trainer, so that scripts written for it run unmodified.

The packages `topspin` and `palframe` import from here. Names are loaded when they are first used.
"""

from __future__ import annotations

import importlib

_HOMES = {
    "param": "ParamBase ParameterRange",
    "model": "ModelBase ModelWrapperBase",
    "train": "TrainerBase",
    "predict": "PredictorBase",
    "starter": "RunManager Server Task clear_server start_distributed_train start_train stop_distributed_train stop_train",
    "measure": "Measure",
    "datasets": "BinDataset DatasetBase bindataset_get_batch_data get_batch_data_helper parse_feat_folder",
    "helper": """
        EPSILON INF Logger Timer async_function cmp command display_server_info ensure_random_seed_for_one_time eq execute_cmd
        get_GPU_num get_IPs get_available_gpus get_file_extension get_file_line_count get_files_in_folder get_files_line_count
        get_future_time get_home_dir get_log_time get_module_path get_new_temporay_file get_server_ip get_server_ip0
        group_by_key_fun is_debugging is_none_or_empty is_os_linux is_sys_mac load_module_from_full_path load_py_data log_sum mkdir
        next_batch next_line_from_file next_line_from_files print_flush pydict_file_read pydict_file_write replace_file_name
        segment_contain segment_intersec segment_no_touch set_random_seeds split_data_by_func timeout to_readable_time to_utf8 uniq
    """,
    "nn_helper": """
        AttenDense Attention Dense FFN FocalLoss Gelu InnerAttention MultiHeadAttention PenalizedTanh PrePostProcessingWrapper
        ResidualGRU Swish TextCNN VallinaDecoder check_nan display_model_parameters isabnormal label_smoothing_loss nan_tensor
        norm_0_1 norm_mean one_hot reverse_sequence run_rnn_seq sequence_mask to_device topK_mask_logits uniform_sample
    """,
}
_MODULES = ("starter", "stopper", "helper", "nn_helper")
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = ["starter", *sorted(_HOME_OF)]


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
