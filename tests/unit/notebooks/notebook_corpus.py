"""Twelve awkward notebooks: of each cell what must become of it, and what the script prints where it can run."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

KEPT, TURNED, DROPPED, DECISION = "kept", "turned", "dropped", "decision"


@dataclass
class C:
    """A cell, its fate, and words that its line of the receipt holds."""

    source: str
    fate: str
    says: str = ""
    kind: str = "code"
    count: int | None = None
    outputs: list[Any] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)

    def as_json(self, number: int) -> dict[str, Any]:
        lines = self.source.splitlines(keepends=True)
        made: dict[str, Any] = {"cell_type": self.kind, "source": lines, "metadata": {"tags": self.tags}}
        if self.kind == "code":
            made |= {"execution_count": self.count or number, "outputs": self.outputs}
        return made


@dataclass
class Awkward:
    cells: list[C]
    requirements: list[str] = field(default_factory=list)
    prints: list[str] | None = None
    """Lines of the script's output; None where it cannot run as it is."""
    notes: str = ""
    data: bytes | None = None

    def bytes(self) -> bytes:
        if self.data is not None:
            return self.data
        cells = [cell.as_json(number) for number, cell in enumerate(self.cells, 1)]
        return json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": cells}).encode()


def text(source: str) -> C:
    return C(source, DROPPED, "text for people", kind="markdown")


MAGICS = Awkward(
    [
        text("# Magics"),
        C("%pip install -q 'httpx>=0.2' rich\n%load_ext autoreload\n%autoreload 2", TURNED, "httpx>=0.2"),
        C("%config InlineBackend.figure_format = 'retina'\n%whos", DROPPED, "only helps when typing"),
        C("%env SIZE=3\nimport os\nsize = int(os.environ['SIZE'])", TURNED, "os.environ"),
        C("%%time\nsquares = [n * n for n in range(size)]\n%time total = sum(squares)", TURNED, "without being timed"),
        C("%%timeit\nsum(range(10))", DROPPED, "only measures time"),
        C("%timeit sum(range(10))", DROPPED, "only measures time"),
        C("%mkdir -p inner\n%cd inner\nprint(os.path.basename(os.getcwd()), total)\n%cd -", TURNED, "os.chdir"),
        C("%%capture\nprint('told')", TURNED, "goes to the log"),
        C("%reset -f\n%tensorboard --logdir runs", DROPPED, "starts empty"),
        C("print(os.path.exists('inner'))", KEPT),
    ],
    requirements=["httpx>=0.2", "rich"],
    prints=["inner 5", "told", "True"],
)

SHELL = Awkward(
    [
        C("name = 'deep sea'\nfiles = 3", KEPT),
        C("!echo one {files + 1} $name '{print}' $$ ${HOME:+home}", TURNED, "runs in a shell"),
        C("for n in range(2):\n    !echo loop {n}\nelse:\n    !!echo done", TURNED),
        C("found = !printf 'a\\nb\\n'\nprint(found, len(found))", TURNED, "a list of the lines"),
        C("%%bash\nfor x in 1 2; do\n  echo bash $x\ndone", TURNED, "run by bash"),
        C(
            "%%writefile helper.py\nimport sys\nprint('helper', sys.argv[1], '''quoted''', \"\\t|\")",
            TURNED,
            "helper.py",
        ),
        C("!python helper.py first && python3 helper.py second", TURNED),
        C("!cd /tmp", DROPPED, "had no effect in the notebook either"),
        C("!false", TURNED),
        C("!echo a \\\n  b\nprint('end')", TURNED),
        C("!git clone https://github.com/me/x 2> /dev/null; true", TURNED, "runs in a shell"),
    ],
    prints=[
        *("one 4 deep sea {print} $ home", "loop 0", "loop 1", "done", "['a', 'b'] 2", "bash 1", "bash 2"),
        *("helper first quoted \t|", "helper second quoted \t|", "a b", "end"),
    ],
)

ASYNC = Awkward(
    [
        C("import asyncio\n\nasync def double(n):\n    await asyncio.sleep(0)\n    return 2 * n", KEPT),
        C("task = asyncio.get_event_loop().create_task(double(4))\nawait asyncio.sleep(0)", TURNED, "event loop"),
        C('text = """\nnot\n    indented\n"""\nfour = await double(2)  # at the top', TURNED, "event loop"),
        C("async def count():\n    for n in range(3):\n        yield n\n", KEPT),
        C("seen = [n async for n in count()]\nasync for last in count():\n    pass", TURNED),
        C("print(four, await task, seen, last, repr(text))", TURNED),
        C("print(four + 1)", KEPT),
    ],
    prints=["4 8 [0, 1, 2] 2 '\\nnot\\n    indented\\n'", "5"],
)

PLOTS = Awkward(
    [
        C("%matplotlib inline\nimport os\nprint(os.environ['MPLBACKEND'])", TURNED, "without a window"),
        C(
            "from IPython.display import HTML, Image, clear_output, display\nclear_output(wait=True)",
            TURNED,
            "text in the log",
        ),
        C("display('a figure', 2)\nHTML('<b>x</b>')", KEPT),
        C("%%html\n<script>alert(1)</script>", DROPPED, "in a browser"),
        C("%%javascript\nalert(1)", DROPPED, "in a browser"),
        C("from tqdm.notebook import tqdm as bar, trange", TURNED, "a bar of text"),
        C("print(list(bar([1, 2], disable=True)))", KEPT),
    ],
    prints=["Agg", "a figure", "2", "[1, 2]"],
)

WIDGETS = Awkward(
    [
        C(
            "import math\nimport ipywidgets as widgets\nfrom ipywidgets import interact",
            DECISION,
            "a person to use them",
        ),
        C("rate = widgets.FloatSlider(value=0.1)\ndisplay(rate)", DECISION),
        C("@interact(x=(0, 10))\ndef show(x):\n    print(x)", DECISION),
        C("lr = rate.value", DECISION, "its value comes from a widget"),
        C("print(math.floor(2.5))", KEPT),
        C("name = input('Your name? ')", DECISION, "a job cannot ask for input"),
    ],
)

OUT_OF_ORDER = Awkward(
    [
        C("model = width * 2\n# needs width", DECISION, "only cell 2, further down", count=7),
        C("width = 4", KEPT, count=3),
        C("def later():\n    return depth  # looked up when it is called", KEPT, count=4),
        C("depth = 2\nprint(later(), [width for width in range(2)])", KEPT, count=5),
    ],
    notes="in the order 2, 3, 4, 1;",
)

IPYTHON = Awkward(
    [
        C("    indented = 1\n    print(indented)", KEPT),
        C("print?\n?print\nstr.join??\n%pinfo print", DROPPED, "only shows help"),
        C("here = %pwd\nprint(here == __import__('os').getcwd())", TURNED, "os.getcwd()"),
        C("pip install -U pathspec", TURNED, "pathspec"),
        C("ls -a /\npwd", TURNED, "runs in a shell"),
        C("get_ipython().system('echo from ipython')\nget_ipython().run_line_magic('matplotlib', 'inline')", TURNED),
        C(
            "try:\n    shell = get_ipython().__class__.__name__\nexcept NameError:\n    shell = 'none'\nprint(shell)",
            KEPT,
        ),
        C("text = '''\n!not a command\n%nor this\n'''\nprint(text.count('!'), '%d' % 3,\n      '100%')", KEPT),
        C("percent = 7\npercent %= 4\nprint(percent != 2, {'a':\n  1}, 10\\\n  % 4)", KEPT),
        C("%%python\nprint('another python')", TURNED, "run by python"),
        C("%%writefile other.py\nvalue = 41", TURNED),
        C("%run other.py --flag\nprint(value + 1)", TURNED, "imports its names"),
    ],
    requirements=["pathspec"],
    prints=["1", "True", "from ipython", "NoneType", "1 3 100%", "True {'a': 1} 2", "another python", "42"],
)

HUGE_OUTPUTS = Awkward(
    [
        C(
            "print('small')",
            KEPT,
            outputs=[{"output_type": "display_data", "data": {"image/png": "iVBOR" * 1_000_000}}],
        ),
        C("print('too')", KEPT, outputs=[{"output_type": "stream", "text": ["x" * 200 + "\n"] * 20_000}]),
    ],
    prints=["small", "too"],
)

NO_CODE = Awkward([text("# Only words"), C("raw", DROPPED, "raw text", kind="raw"), C("  \n", DROPPED, "empty")])

COLAB = Awkward(
    [
        C(
            "!pip install -q torch>=2.0 && pip3 install -U git+https://github.com/a/b.git > /dev/null 2>&1",
            TURNED,
            "torch>=2.0",
        ),
        C(
            "from google.colab import drive, files, userdata\ndrive.mount('/content/drive')",
            DECISION,
            "push what you read",
        ),
        C("import os; from google.colab import output; output.clear()", TURNED, "only Colab has this module"),
        C("data = open('/content/drive/MyDrive/corpus/a.txt')", DECISION, "not available in a job"),
        C(
            "!wget -q https://example.org/data/reviews.csv.gz -O reviews.gz\n!gunzip reviews.gz",
            DECISION,
            "download this again",
        ),
        C("!gdown 1AbCdEfGhIjKlMnOpQrStUvWxYz", DECISION),
        C("!apt-get install -y ffmpeg", DECISION, "system packages"),
        C("key = userdata.get('WANDB_API_KEY')", TURNED, "an environment variable"),
        C("from huggingface_hub import notebook_login\nnotebook_login()", DECISION, "HF_TOKEN"),
        C("files.download('model.pt')", DROPPED, "/output-checkpoint"),
        C("uploaded = files.upload()", DECISION, "no browser"),
        C("%cd /content/repo\n!nvidia-smi", TURNED, "os.chdir"),
        C("try:\n    import google.colab\n    IN_COLAB = True\nexcept ImportError:\n    IN_COLAB = False", KEPT),
        C("if IN_COLAB:\n    from google.colab import auth\n    auth.authenticate_user()", KEPT),
        C("%pip install -r requirements-dev.txt", DECISION, "where the notebook was"),
    ],
    requirements=["torch>=2.0", "git+https://github.com/a/b.git"],
)

OLD_FORMAT = Awkward(
    [
        C("Title", DROPPED, "text for people", kind="markdown"),
        C("x = 2", KEPT),
        C("print x", DECISION, "this is not valid Python"),
        C("print(x)", KEPT),
    ],
    prints=["2"],
    data=json.dumps(
        {
            "nbformat": 3,
            "metadata": {"name": "old"},
            "worksheets": [
                {
                    "cells": [
                        {"cell_type": "heading", "level": 1, "source": "Title"},
                        {
                            "cell_type": "code",
                            "language": "python",
                            "input": "x = 2\r\n",
                            "prompt_number": 1,
                            "outputs": [],
                        },
                        {"cell_type": "code", "language": "python", "input": ["print x"], "outputs": []},
                        {"cell_type": "code", "language": "python", "input": ["print(x)"], "prompt_number": 2},
                    ]
                }
            ],
        }
    ).encode(),
)

BROKEN = Awkward(
    [
        C("%%cython\ncdef int x = 1", DECISION, "another language or an unknown magic"),
        C("%%bash --out caught\nls", DECISION, "work only in IPython"),
        C("%unheard_of 3", DECISION, "unknown magic"),
        C("x = 1\n%%time\ny = 2", DECISION, "must be the first in its cell"),
        C("from __future__ import annotations\nz: unknown = 5", TURNED, "top"),
        C("def f(:\n  pass", DECISION, "this is not valid Python"),
        C("print(Out[3], _, _12)", DECISION, "no memory of earlier results"),
        C("%store -r thing", DECISION),
        C("%%capture caught\nprint(1)", DECISION, "would contain the output of the cell"),
        C("text = caught.stdout", KEPT),
        C("%run analysis.ipynb", DECISION, "another notebook"),
        C("for _ in range(2): print(_, z)", KEPT, tags=["run"]),
    ],
)

AWKWARD = {
    "magics": MAGICS,
    "shell": SHELL,
    "async": ASYNC,
    "plots": PLOTS,
    "widgets": WIDGETS,
    "out_of_order": OUT_OF_ORDER,
    "ipython": IPYTHON,
    "huge_outputs": HUGE_OUTPUTS,
    "no_code": NO_CODE,
    "colab": COLAB,
    "old_format": OLD_FORMAT,
    "broken": BROKEN,
}
