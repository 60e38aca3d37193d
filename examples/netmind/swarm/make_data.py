"""Makes up sentences and a tiny BERT to learn them, so that nothing needs to be downloaded.

python make_data.py data          # writes data/model and data/tokenized
"""

import random
import sys
from itertools import product
from pathlib import Path

from datasets import Dataset, DatasetDict
from transformers import BertConfig, BertTokenizerFast

WHO = "the fish|a crab|one whale|the shoal|a diver".split("|")
DOES = "sees|follows|hides from|swims past|forgets".split("|")
WHERE = "near the reef|in the deep|at night|below the ice".split("|")


def main(folder: Path, sentences: int) -> None:
    lines = [" ".join(words) for words in product(WHO, DOES, WHO, WHERE)]
    model = folder / "model"
    model.mkdir(parents=True, exist_ok=True)
    words = sorted({word for line in lines for word in line.split()})
    (model / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]) + "\n")
    tokenizer = BertTokenizerFast(str(model / "vocab.txt"))
    tokenizer.save_pretrained(model)
    BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=32,
    ).save_pretrained(model)
    tokens = tokenizer(lines, padding="max_length", max_length=16)
    drawn = random.Random(0).choices(range(len(lines)), k=sentences)
    train = Dataset.from_dict({name: [tokens[name][i] for i in drawn] for name in ("input_ids", "attention_mask")})
    DatasetDict(train=train).save_to_disk(folder / "tokenized")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 100_000)
