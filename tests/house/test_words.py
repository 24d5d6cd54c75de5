"""Words that stand in one place only, or nowhere."""

import ast
import re

import pytest

MASKS = ("model/sight.py", "model/attention.py", "textbook.py", "auditing/zoo/")
A_MACHINE = re.compile(r"(?<![\w.~$}])/(?:home|root|work|Users|opt|mnt)/\w")


def dotted(node):
    """The words of `a.b.c`, or the last of them where something else stands before: [..., "b", "c"]."""
    if isinstance(node, ast.Attribute):
        return [*dotted(node.value), node.attr]
    return [node.id] if isinstance(node, ast.Name) else [""]


def words_of(node):
    """The names a piece of the syntax tree uses, each as it is written with its dots."""
    if isinstance(node, ast.Name | ast.Attribute):
        return [".".join(dotted(node))]
    if isinstance(node, ast.ImportFrom):
        return [f"{node.module}.{alias.name}" for alias in node.names]
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.arg] if isinstance(node, ast.keyword | ast.arg) and node.arg else []


def makes_masks(node):
    """Who sees whom is said in one place; a second mask is the second place to be wrong."""
    return any(word.rpartition(".")[2] in ("tril", "triu", "is_causal") for word in words_of(node))


def asserts(node):
    """An assert is gone under `python -O`: raise one of leftward.errors."""
    return isinstance(node, ast.Assert)


def prints(node):
    """Printing is for cli.py; everybody else returns."""
    return isinstance(node, ast.Call) and dotted(node.func) == ["print"]


def runs_what_it_reads(node):
    """A file is data: nothing in it may become code."""
    banned = {"pickle", "dill", "cloudpickle", "marshal", "shelve", "torch.load", "torch.save"}
    if isinstance(node, ast.Call) and dotted(node.func) in (["eval"], ["exec"]):
        return True
    return any(word in banned or word.partition(".")[0] in banned for word in words_of(node))


def writes(node):
    """A file appears whole or not at all, and disk.py sees to it."""
    if not isinstance(node, ast.Call):
        return False
    *_, verb = words = dotted(node.func)
    if verb == "open":
        place = 1 if words == ["open"] or words[-2] in ("io", "os", "gzip", "codecs") else 0
        given = [word.value for word in node.keywords if word.arg == "mode"] + node.args[place : place + 1]
        return any(not isinstance(mode, ast.Constant) or set(str(mode.value)) & set("wax+") for mode in given)
    places = ["os.rename", "os.replace", "np.save", "np.savez", "numpy.save", "numpy.savez"]
    return ".".join(words) in places or verb in ("write_text", "write_bytes", "save_file", "tofile")


def takes_anything(node):
    """Whatever a function can be told stands in its signature."""
    return isinstance(node, ast.arguments) and node.kwarg is not None


RULES = {
    makes_masks: MASKS,
    asserts: (),
    prints: ("cli.py",),
    runs_what_it_reads: (),
    writes: ("disk.py",),
    takes_anything: (),
}


def breaches_of_words(path, text):
    """Every forbidden word of a module, with its line and the reason why it is forbidden."""
    rules = [rule for rule, places in RULES.items() if not path.startswith(places or ("nowhere/",))]
    nodes = list(ast.walk(ast.parse(text)))
    lines = {id(child): parent.lineno for parent in nodes if hasattr(parent, "lineno") for child in ast.walk(parent)}
    for node in nodes:
        for rule in rules:
            if rule(node):
                yield f"{path}:{getattr(node, 'lineno', lines.get(id(node)))}: {rule.__doc__}"


def machines_named(path, text):
    """Every line that names a folder of somebody's machine."""
    for number, line in enumerate(text.splitlines(), start=1):
        if A_MACHINE.search(line):
            yield f"{path}:{number}: {line.strip()}"


def test_every_word_stands_where_it_may(sources):
    assert not [breach for path, text in sources.items() for breach in breaches_of_words(path, text)]


def test_no_machine_is_named(root):
    files = [*root.glob("*.md"), *root.glob("*.toml"), root / "Makefile", root / ".ci/run"]
    for folder in ("src", "tests", "tools", "bench", "docs"):
        files += [path for kind in ("py", "md", "toml") for path in (root / folder).rglob(f"*.{kind}")]
    texts = {path.relative_to(root): path.read_text("utf-8") for path in files}
    assert not [breach for path, text in texts.items() for breach in machines_named(path, text)]


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (makes_masks, "mask = torch.tril(scores)"),
        (makes_masks, "mask = torch.ones(3, 3).triu(1)"),
        (makes_masks, "attend(q, k, v, is_causal=True)"),
        (makes_masks, "from torch import tril"),
        (makes_masks, "def attend(q, is_causal): ..."),
        (asserts, "def f(x):\n    assert x"),
        (prints, "def f(x):\n    print(x)"),
        (runs_what_it_reads, "import pickle"),
        (runs_what_it_reads, "from pickle import loads"),
        (runs_what_it_reads, "state = torch.load(path)"),
        (runs_what_it_reads, "from torch import save"),
        (runs_what_it_reads, "x = eval(text)"),
        (writes, "open(path, 'w')"),
        (writes, "open(path, mode='ab')"),
        (writes, "open(path, how)"),
        (writes, "path.open('wb')"),
        (writes, "os.rename(old, new)"),
        (writes, "os.replace(old, new)"),
        (writes, "path.write_text('')"),
        (writes, "folder.joinpath(name).write_bytes(b'')"),
        (writes, "save_file(tensors, path)"),
        (takes_anything, "def f(x, **rest): ..."),
        (takes_anything, "f = lambda **rest: rest"),
    ],
)
def test_a_planted_word_is_found(rule, text):
    [breach] = breaches_of_words("training/loop.py", text)
    assert rule.__doc__ in breach and ":None:" not in breach
    for place in RULES[rule]:
        assert not list(breaches_of_words(place + "faults.py" * place.endswith("/"), text))


@pytest.mark.parametrize(
    "text",
    [
        '"""A lower triangle: tril, is_causal, print(x), assert."""',
        "model.eval()",
        "table.print",
        "open(path)",
        "open(path, 'rb')",
        "path.open(encoding='utf-8')",
        "name.replace('w', 'x')",
        "torch.load_library",
        "def f(*words, size): ...",
        "f(**settings)",
    ],
)
def test_an_honest_word_is_left_alone(text):
    assert not list(breaches_of_words("training/loop.py", text))


def test_a_planted_machine_is_found():
    slash = "/"
    for folder in ("home", "root", "work", "Users", "opt", "mnt"):
        assert list(machines_named("README.md", f"see {slash}{folder}{slash}somebody/model"))
    assert not list(machines_named("README.md", "see src/work/x, ~/opt/x, https://example.org/home/x and $ROOT/work/x"))
