"""Makes up sentences: each intent has words of its own, among many that tell nothing."""

import pickle
import random
from pathlib import Path

from example.nlp.intent_dection.param import Param


def sentences(param, count, seed):
    draw = random.Random(seed)
    for number in range(count):
        label = number % param.class_number
        own = range(100 + 3 * label, 103 + 3 * label)
        words = [draw.choice(own) if draw.random() < 0.8 else draw.randrange(1000, param.vocab_size) for _ in range(40)]
        yield words + [0] * (param.max_seq_len - len(words)), label


def main():
    param = Param.get_instance()
    Path(param.path_feat).mkdir(parents=True, exist_ok=True)
    for name, count, seed in (("train", param.train_sample_num, 1), ("vali", 39, 2)):
        file = Path(param.path_feat) / f"{name}.pkl"
        file.write_bytes(pickle.dumps(list(sentences(param, count, seed))))
        print(f"{count} samples are in {file}")


if __name__ == "__main__":
    main()
