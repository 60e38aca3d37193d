"""Conversion of the address of a page that shows a notebook to that of the notebook, and the token for it."""

import pytest

from shoal.server.notebooks.urls import find_notebook

RAW = "https://raw.githubusercontent.com/a/b"


def nobody(host):
    return None


def of_host(host):
    return f"token-of-{host}"


@pytest.mark.parametrize(
    ("page", "file", "title"),
    [
        ("https://colab.research.google.com/drive/1r1WTCnvZ81du3b9WJy?usp=sharing", "https://drive.google.com/uc?export=download&id=1r1WTCnvZ81du3b9WJy", "colab-1r1WTCnv.ipynb"),
        ("https://drive.google.com/file/d/1r1WTCnvZ81du3b9WJy/view", "https://drive.google.com/uc?export=download&id=1r1WTCnvZ81du3b9WJy", "colab-1r1WTCnv.ipynb"),
        ("https://drive.google.com/open?id=1r1WTCnvZ81du3b9WJy", "https://drive.google.com/uc?export=download&id=1r1WTCnvZ81du3b9WJy", "colab-1r1WTCnv.ipynb"),
        ("https://colab.research.google.com/github/a/b/blob/main/x/My%20net.ipynb", f"{RAW}/main/x/My%20net.ipynb", "My net.ipynb"),
        ("https://github.com/a/b/blob/feature/x/train.ipynb", f"{RAW}/feature/x/train.ipynb", "train.ipynb"),
        ("https://github.com/a/b/raw/main/train.ipynb", f"{RAW}/main/train.ipynb", "train.ipynb"),
        ("https://nbviewer.org/github/a/b/blob/main/train.ipynb", f"{RAW}/main/train.ipynb", "train.ipynb"),
        ("https://nbviewer.org/urls/x.org/y/z.ipynb", "https://x.org/y/z.ipynb", "z.ipynb"),
        ("https://nbviewer.org/url/x.org/y/z.ipynb", "http://x.org/y/z.ipynb", "z.ipynb"),
        ("https://gist.github.com/me/0123456789abcdef", "https://api.github.com/gists/0123456789abcdef", "notebook.ipynb"),
        ("https://colab.research.google.com/gist/me/0123456789abcdef/n.ipynb", "https://api.github.com/gists/0123456789abcdef", "notebook.ipynb"),
        ("https://hub.x.org/user/me/lab/tree/deep/n.ipynb", "https://hub.x.org/user/me/files/deep/n.ipynb", "n.ipynb"),
        ("http://localhost:8888/notebooks/n.ipynb?token=s3cret", "http://localhost:8888/files/n.ipynb", "n.ipynb"),
        ("https://gitlab.com/a/b/-/blob/main/n.ipynb", "https://gitlab.com/a/b/-/raw/main/n.ipynb", "n.ipynb"),
        ("https://huggingface.co/datasets/a/b/blob/main/n.ipynb", "https://huggingface.co/datasets/a/b/resolve/main/n.ipynb", "n.ipynb"),
        ("https://x.org/any/n.ipynb?sig=1", "https://x.org/any/n.ipynb?sig=1", "n.ipynb"),
        ("https://x.org/download", "https://x.org/download", "download.ipynb"),
    ],
)  # fmt: skip
def test_a_page_leads_to_its_notebook(page, file, title):
    place = find_notebook(page, nobody)
    assert (place.url, place.title) == (file, title)


def test_a_drive_file_that_is_not_public_is_asked_for_with_the_token():
    place = find_notebook("https://colab.research.google.com/drive/1r1WTCnvZ81du3b9WJy", lambda host: "mine")
    assert place.url == "https://www.googleapis.com/drive/v3/files/1r1WTCnvZ81du3b9WJy?alt=media"
    assert place.headers == {"Authorization": "Bearer mine"}


@pytest.mark.parametrize(
    ("page", "sent"),
    [
        ("https://github.com/a/b/blob/main/n.ipynb", "Bearer token-of-github.com"),
        ("https://colab.research.google.com/github/a/b/blob/main/n.ipynb", "Bearer token-of-github.com"),
        ("https://nbviewer.org/urls/evil.org/n.ipynb", None),
        ("https://x.org/n.ipynb", "Bearer token-of-x.org"),
        ("https://hub.x.org/lab/tree/n.ipynb", "token token-of-hub.x.org"),
    ],
)
def test_a_token_goes_only_where_it_belongs(page, sent):
    assert find_notebook(page, of_host).headers.get("Authorization") == sent


def test_a_token_in_the_address_of_jupyter_becomes_a_header():
    place = find_notebook("http://h:8888/lab/tree/n.ipynb?token=s3cret", nobody)
    assert place.headers == {"Authorization": "token s3cret"} and "s3cret" not in place.url
