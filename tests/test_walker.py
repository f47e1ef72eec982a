"""The walker as a whole: what it refuses, that it is repeatable, and how it parses.

What it finds is in ``walker_cases``. The sources of this project serve as a corpus for the parser:
an outline whose bodies are filled in must be what ``ast.parse`` gives.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.surface import outline
from conformance.surface.inventory import dumps
from conformance.surface.program import speaks_of_device
from conformance.surface.sources import SourceTree, memory_tree
from conformance.surface.walker import walk
from conformance.target import WrongUse
from tests.walker_cases import CASES

ROOT = Path(__file__).resolve().parents[1]
CORPUS = sorted([*ROOT.glob("conformance/**/*.py"), *ROOT.glob("tests/*.py")])

RUNNER = "vllm/v1/worker/gpu_model_runner.py"
PACKAGES = {"vllm/__init__.py": "", "vllm/v1/__init__.py": "", "vllm/v1/worker/__init__.py": ""}
BODY = """
import torch
class GPUModelRunner:
    def execute_model(self):
        torch.cuda.synchronize()
"""


def tree(**files: str) -> SourceTree:
    return memory_tree({**PACKAGES, RUNNER: BODY, **files})


def test_a_runner_that_has_moved_is_one_sentence():
    with pytest.raises(WrongUse, match="no class GPUModelRunner in vllm/v1/worker/gpu_model_run"):
        walk(memory_tree({**PACKAGES, RUNNER: "class Other: ...\n"}))


def test_a_tree_without_the_runner_is_one_sentence():
    with pytest.raises(WrongUse, match="the runner has moved, or this is no vLLM"):
        walk(memory_tree(PACKAGES))


@pytest.mark.parametrize("text", ["def broken(:\n", "x = (\n", "class A:\npass\n"])
def test_a_syntax_error_is_a_sentence_with_path_and_line(text):
    broken = BODY.replace("import torch", "import torch\nfrom vllm import broken")
    with pytest.raises(WrongUse, match=r"^vllm/broken\.py, line \d, is not Python"):
        walk(tree(**{RUNNER: broken, "vllm/broken.py": text}))


@pytest.mark.parametrize(
    ("text", "speaks"),
    [
        ("torch.cuda.synchronize()", True),
        ("cuda", True),
        ("barracuda or cudart", False),
        ("barracuda, or 'cuda'", True),
        ("current_platform.is_rocm()", True),
        ("current_platform.name", False),
        ("x.to(d, non_blocking=True)", True),
    ],
)
def test_what_a_source_is_looked_through_for_are_whole_words(text, speaks):
    assert speaks_of_device(text) is speaks


def test_a_function_at_the_very_start_of_a_source_is_cut_too():
    text = "def first():\n    return 1\n\nasync def second(): return 2\n"
    tree, spans = outline.parse(text, "start.py")
    assert spans == {1: (2, 2)}
    assert [node.lineno for node in tree.body] == [1, 4]


def test_a_syntax_error_in_a_body_that_was_left_out_is_a_sentence_too():
    text = BODY + "        return )\n\n    def other(self):\n        pass\n"
    with pytest.raises(WrongUse, match=rf"^{RUNNER}, line 6, is not Python"):
        walk(tree(**{RUNNER: text}))


def test_an_expression_that_nests_too_deep_is_a_sentence():
    deep = BODY + "        return " + "-" * 60_000 + "1\n"
    with pytest.raises(WrongUse, match=r"nests|is not Python"):
        walk(tree(**{RUNNER: deep}))


def test_a_syntax_error_in_a_module_that_nothing_reaches_does_not_matter():
    assert walk(tree(**{"vllm/unreached.py": "def broken(:\n"})).rows


def test_nothing_of_the_tree_is_executed(tmp_path):
    mark = tmp_path / "executed"
    text = f"import pathlib\npathlib.Path({str(mark)!r}).touch()\n{BODY}"
    assert walk(tree(**{RUNNER: text})).rows
    assert not mark.exists()


def test_a_walk_is_the_same_whatever_the_hash_seed():
    code = (
        "import sys\n"
        "from conformance.surface.inventory import dumps\n"
        "from conformance.surface.sources import memory_tree\n"
        "from conformance.surface.walker import walk\n"
        "from tests.walker_cases import CASES\n"
        "for case in CASES[::7]:\n"
        "    sys.stdout.write(dumps(walk(memory_tree(case.tree, version='0.0.1'))))\n"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(outputs) == 1 and outputs != {b""}


def test_walking_twice_gives_the_same():
    case = CASES[0]
    first, second = (walk(memory_tree(case.tree, version="0.0.1")) for _ in range(2))
    assert dumps(first) == dumps(second)


def test_a_site_that_a_cpu_reaches_with_one_generation_has_a_row_for_each():
    shared = "import torch\n\ndef go():\n    torch.cuda.init()\n"
    call = "class GPUModelRunner:\n    def execute_model(self):\n"
    head = "from vllm.platforms import current_platform\nfrom vllm.shared import go\n\n"
    files = {
        **dict(CASES[0].tree),
        RUNNER: f"{head}{call}        if current_platform.is_cuda():\n            go()\n",
        "vllm/v1/worker/gpu/__init__.py": "",
        "vllm/v1/worker/gpu/model_runner.py": f"{head}{call}        go()\n",
        "vllm/shared.py": shared,
    }
    rows = [row for row in walk(memory_tree(files)).rows if row.module == "vllm.shared"]
    assert {(row.generation, row.on_cpu) for row in rows} == {("v1", "false"), ("v2", "true")}
    assert [row.chain[0].split(":")[0] for row in rows] == [
        "vllm.v1.worker.gpu_model_runner",
        "vllm.v1.worker.gpu.model_runner",
    ]
    same = {**files, RUNNER: f"{head}{call}        go()\n"}
    (row,) = [row for row in walk(memory_tree(same)).rows if row.module == "vllm.shared"]
    assert (row.generation, row.on_cpu) == ("both", "true")


@pytest.mark.parametrize("path", CORPUS, ids=[str(p.relative_to(ROOT)) for p in CORPUS])
def test_an_outline_with_its_bodies_is_the_whole(path):
    text = path.read_text(encoding="utf-8")
    lines = text.split("\n")
    parsed, spans = outline.parse(text, str(path))
    for node in outline._functions(parsed.body):
        if node.lineno in spans:
            first, last = spans[node.lineno]
            body = "\n".join(lines[first - 1 : last])
            node.body = outline.parse_body(body, first, str(path))
    whole = ast.parse(text)
    assert ast.dump(parsed) == ast.dump(whole)
    assert _lines(parsed) == _lines(whole)


def _lines(node: ast.AST) -> list[tuple[str, int]]:
    return sorted(
        (type(part).__name__, part.lineno) for part in ast.walk(node) if hasattr(part, "lineno")
    )


@pytest.mark.parametrize(
    "text",
    [
        'def f():\n    x = """\nleft of it\n"""\n    return x\n',
        'def f():\n    """doc"""\n\ndef g():\n    y = """\nz"""\n',
        "def f(): return 1\ndef g():\n    return 2\n",
        "def f(a=(1,\n      2), b={'x': ':'}):\n    return a\n",
        "class A:\n    def f(self):\n        pass\n# comment\n        # deep\n\n    x = 1\n",
        "if x:\n    def f():\n        pass\nelse:\n    def f():\n        return 1\n",
        "def f():\n\treturn 1\ndef g():\n\treturn 2\n",
        "def f():\n    x = (\n1)\n    return x\ny = 2\n",
        "@d\nasync def f(x: int) -> str:  # why\n    await x\n",
        'def f(\n    x="a:b",  # a colon :\n):\n    pass\n',
        "def f():\n    return 1  \\\n  + 2\n",
    ],
)
def test_an_outline_is_right_or_is_not_made(text):
    parsed, spans = outline.parse(text, "x.py")
    for node in outline._functions(parsed.body):
        if node.lineno in spans:
            first, last = spans[node.lineno]
            body = "\n".join(text.split("\n")[first - 1 : last])
            node.body = outline.parse_body(body, first, "x.py")
    assert ast.dump(parsed) == ast.dump(ast.parse(text))


def test_most_functions_of_a_module_are_left_out():
    text = "def f():\n    return 1\n\n\nclass A:\n    def g(self):\n        return 2\n"
    assert outline.parse(text, "x.py")[1] == {1: (2, 2), 6: (7, 7)}
