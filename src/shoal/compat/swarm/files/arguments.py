"""Arguments of NetMind's swarm examples, with the values that its website filled in as defaults."""

import os
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

_TrainingArguments: Any = import_module("transformers").TrainingArguments


@dataclass
class BaseTrainingArguments:
    experiment_prefix: str = field(default="albert", metadata={"help": "Name of the swarm in the DHT"})
    initial_peers: list[str] = field(
        default_factory=list, metadata={"help": "Addresses of peers to join; give several, because one may be offline"}
    )
    use_ipfs: bool = field(default=False, metadata={"help": "Find initial_peers through IPFS, by /p2p/XXXX alone"})
    host_maddrs: list[str] = field(
        default_factory=lambda: ["/ip4/0.0.0.0/tcp/0"], metadata={"help": "Addresses to listen on"}
    )
    announce_maddrs: list[str] = field(default_factory=list, metadata={"help": "Addresses announced to other peers"})
    identity_path: str | None = field(default=None, metadata={"help": "Key file: the same peer id at every start"})


@dataclass
class AveragerArguments:
    target_group_size: int = field(default=256, metadata={"help": "Maximum peers in one all-reduce"})


@dataclass
class ProgressTrackerArguments:
    min_refresh_period: float = field(default=0.5, metadata={"help": "Minimum seconds between reads of the progress"})
    max_refresh_period: float = field(default=30, metadata={"help": "Maximum seconds between reads of the progress"})
    default_refresh_period: float = field(default=3, metadata={"help": "Seconds between reads until one succeeds"})
    expected_drift_peers: float = field(default=3, metadata={"help": "Peers that may join during a step"})
    expected_drift_rate: float = field(default=0.2, metadata={"help": "Peers that may join, as a share of the swarm"})
    metadata_expiration: float = field(default=120, metadata={"help": "Seconds of silence after which a peer is gone"})


@dataclass
class OptimizerArguments:
    target_batch_size: int = field(default=256, metadata={"help": "Samples of all peers together in one step"})
    client_mode: bool = field(default=False, metadata={"help": "Accept no incoming connections (firewall)"})
    batch_size_lead: int = field(default=0, metadata={"help": "Samples before the end to start matchmaking"})
    bandwidth: float = field(default=100.0, metadata={"help": "Bandwidth of this peer's network, Mbit/s"})
    averaging_timeout: float = field(default=60.0, metadata={"help": "Seconds after which a round is cancelled"})
    matchmaking_time: float = field(default=5.0, metadata={"help": "Seconds to wait for others to join a round"})


@dataclass
class CollaborationArguments(OptimizerArguments, BaseTrainingArguments):
    statistics_expiration: float = field(default=600, metadata={"help": "Seconds that a peer's metrics are valid"})
    backup_every_steps: int = field(default=10, metadata={"help": "Steps between backups, restored on NaN"})


@dataclass
class DatasetArguments:
    dataset_path: str | None = field(
        default=os.environ.get("DATA_LOCATION", "data/tokenized"), metadata={"help": "Folder of the tokenized dataset"}
    )
    model_name_or_path: str | None = field(
        default="bert-base-uncased", metadata={"help": "Name of the model, or a folder with its config"}
    )
    cache_dir: str | None = field(default="data", metadata={"help": "Folder of the cache"})


@dataclass
class ModelTrainingArguments(_TrainingArguments):  # type: ignore[misc]
    dataloader_num_workers: int = 4
    per_device_train_batch_size: int = 16
    per_device_eval_batch_size: int = 4
    gradient_accumulation_steps: int = 2
    seq_length: int = 512
    total_steps: int = field(default=125_000, metadata={"help": "Total steps of the learning-rate schedule"})
    learning_rate: float = 0.00176
    warmup_steps: int = 5000
    adam_epsilon: float = 1e-6
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    clamp_value: float = 10000.0
    do_train: bool = True
    do_eval: bool = False
    logging_steps: int = 100
    save_total_limit: int = 2
    save_steps: int = 500
    output_dir: str = "outputs"
    max_steps: int = 1_250_000
