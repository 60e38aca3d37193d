"""A masked language model with random weights, and its tokenizer: by name, or from a folder with a `config.json`."""

from transformers import AutoConfig, AutoModelForMaskedLM, AutoTokenizer


def get_model(args):
    config = AutoConfig.from_pretrained(args.model_name_or_path)
    model = AutoModelForMaskedLM.from_config(config)
    tokenizer = AutoTokenizer.from_pretrained(args.model_name_or_path)
    return model, tokenizer
