"""Write the generated pages: from paper to code, and the pictures.

    python docs/generate.py            writes docs/papers.md and docs/figures/
    python docs/generate.py --papers   only docs/papers.md

Which code belongs to a numbered statement of a paper is read off docstrings, the catalogue of guarantees and the
sources of experiments, so a page can neither forget nor invent one.
"""

import argparse
import ast
import re
from collections import defaultdict
from pathlib import Path

import kernfed
import kernfed_papers
from kernfed.guarantees import CATALOG
from kernfed_papers.runner import list_experiments

DOCS = Path(__file__).parent
#: Title and authors of each paper as its first page prints them.
PAPERS = {
    "SFM": (
        "Operator-Theoretic Framework for Gradient-Free Federated Learning",
        "Mohit Kumar, Mathias Brucker, Alexander Valentinitisch, Adnan Husakovic, Ali Abbas, Manuela Geiß, "
        "Bernhard A. Moser",
    ),
    "DP-KAHM": (
        "On Mitigating the Utility-Loss in Differentially Private Learning: A New Perspective by a Geometrically "
        "Inspired Kernel Approach",
        "Mohit Kumar, Bernhard A. Moser, Lukas Fischer",
    ),
    "GIKM": (
        "Geometrically Inspired Kernel Machines for Collaborative Learning Beyond Gradient Descent",
        "Mohit Kumar, Alexander Valentinitzsch, Magdalena Fuchs, Mathias Brucker, Juliana Bowles, Adnan Husakovic, "
        "Ali Abbas, Bernhard A. Moser",
    ),
    "FedNewton": (
        "Efficient Newton-Type Federated Learning with Non-IID Data",
        "anonymous, under double-blind review",
    ),
    "KME": (
        "Adaptive Personalized Federated Learning via Multi-task Averaging of Kernel Mean Embeddings",
        "Jean-Baptiste Fermanian, Batiste Le Bars, Aurélien Bellet",
    ),
}
#: Numbered statements of each paper, in its own numbering.
ITEMS = {
    "SFM": {
        "Definition": range(1, 7),
        "Algorithm": range(1, 2),
        "Theorem": range(1, 10),
        "Proposition": range(1, 4),
        "Table": range(1, 11),
        "Figure": (2, 3),
    },
    "DP-KAHM": {
        "Definition": range(1, 16),
        "Algorithm": range(1, 2),
        "Theorem": range(1, 7),
        "Table": range(3, 12),
        "Figure": (2, 4, 6, 8, 9, 10, 12, 13, 14, 15, 16, 17),
    },
    "GIKM": {
        "Definition": range(1, 6),
        "Theorem": range(1, 9),
        "Lemma": (1, 2, 3),
        "Table": range(1, 18),
        "Figure": (2, 3),
    },
    "FedNewton": {
        "Definition": range(1, 4),
        "Algorithm": range(1, 2),
        "Theorem": range(1, 5),
        "Table": (2, 3),
        "Figure": range(2, 6),
    },
    "KME": {
        "Algorithm": range(1, 4),
        "Lemma": ("4.3",),
        "Theorem": ("4.4", "5.2"),
        "Corollary": ("4.6",),
        "Example": ("4.2", "5.1"),
        "Table": (1, 2),
        "Figure": (1, 2, 3, 4),
    },
}
_INTRODUCTION = """\
# From paper to code

Every numbered definition, algorithm, theorem, table and figure that says something computable, and the code that
computes it. This page is generated from docstrings by `python docs/generate.py`. Statements about errors carry their
status; [what is wrong in the papers](errata.md) says why.

Left out are diagrams without numbers, and DP-KAHM Figures 1 and 3, which are examples of the same kind as Figures 9
and 8. DP-KAHM Figures 12 (b) and 14 plot membership scores and what fabricated rows change in them; these are rows of
the tables of `kernfed bench dpkahm-table-5`, `-6` and `-7` and are not drawn."""
_KINDS = "Definition|Algorithm|Theorem|Proposition|Lemma|Corollary|Example|Table|Figure"
_NUMBERS = r"\d+(?:\.\d+)?(?:(?:\s*[-,]\s*|\s+and\s+)\d+(?:\.\d+)?)*"
_GROUP = rf"(?:{_KINDS})s?\s+{_NUMBERS}"
_REFERENCE = re.compile(rf"({'|'.join(PAPERS)})[\s,]+((?:{_GROUP}(?:\s*,\s*|\s+and\s+|\s*$)?)+)")
_ONE_GROUP = re.compile(rf"({_KINDS})s?\s+({_NUMBERS})")


def references(text: str) -> set[tuple[str, str, str]]:
    """Numbered statements (paper, kind, number) that a text names.

    >>> sorted(references("DP-KAHM Theorems 3-5 (SFM Theorem 9, GIKM Lemma 1 and Theorem 2)"))[-2:]
    [('GIKM', 'Theorem', '2'), ('SFM', 'Theorem', '9')]
    """
    statements = set()
    for paper, groups in _REFERENCE.findall(text):
        for kind, numbers in _ONE_GROUP.findall(groups):
            statements |= {(paper, kind, number) for number in _expand(numbers)}
    return statements


def _expand(numbers: str) -> list[str]:
    """``"3-5, 7 and 9"`` as single numbers."""
    single: list[str] = []
    for part in re.split(r"\s*,\s*|\s+and\s+", numbers):
        first, _, last = (piece.strip() for piece in part.partition("-"))
        single += [str(value) for value in range(int(first), int(last) + 1)] if last else [first]
    return single


def collect() -> dict[tuple[str, str, str], dict[str, None]]:
    """Places in the code by statement, in the order found."""
    places: dict[tuple[str, str, str], dict[str, None]] = defaultdict(dict)
    for theorem in CATALOG:
        kind, _, number = theorem.number.partition(" ")
        places[theorem.paper, kind, number][f"`kernfed.guarantees.{theorem.function}` ({theorem.status})"] = None
    for experiment in list_experiments():
        for item in references(experiment.source):
            places[item][f"`kernfed bench {experiment.id}`"] = None
    for name, text in _docstrings(ast.parse((DOCS / "pictures.py").read_text(encoding="utf-8")), "docs/pictures.py"):
        for item in references(text):
            places[item][f"`{name}`"] = None
    for module, path in _modules():
        for name, text in _docstrings(ast.parse(path.read_text(encoding="utf-8")), module):
            for item in references(text):
                told = any(name.startswith(place.strip("`").split("`")[0]) for place in places[item])
                if not told and not (places[item] and name.startswith("kernfed_papers")):
                    places[item][f"`{name}`"] = None
    return places


def _modules() -> list[tuple[str, Path]]:
    """Names and files of the modules in which statements are computed: those of the papers, then those of kernfed."""
    modules = []
    for package in (kernfed_papers, kernfed):
        source = Path(str(package.__file__)).parent
        for path in sorted(source.rglob("*.py")):
            parts = (package.__name__, *path.relative_to(source).with_suffix("").parts)
            modules.append((".".join(parts).removesuffix(".__init__"), path))
    told = ("kernfed.guarantees", "kernfed.report", "kernfed.cli", "kernfed_papers.pages", "kernfed_papers.bench")
    return [(module, path) for module, path in modules if not module.startswith(told)]


def _docstrings(tree: ast.AST, prefix: str) -> list[tuple[str, str]]:
    """Docstrings of a module and of what it defines, under names that can be imported.

    What a private class defines is found at the first public class that inherits it. Other private names, and what is
    inside functions, lead to what they are part of.
    """
    described = [(prefix, _docstring(tree))] if isinstance(tree, ast.Module) else []
    heirs = _heirs(tree)
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            known = heirs.get(node.name, node.name)
            name = prefix if known.startswith("_") else f"{prefix}.{known}"
            inside = _docstrings(node, name)
            if isinstance(node, ast.FunctionDef) or known.startswith("_"):
                inside = [(name, text) for _, text in inside]
            described += [(name, _docstring(node)), *inside]
    return described


def _docstring(node: ast.AST) -> str:
    """The docstring of a node on one line."""
    return " ".join((ast.get_docstring(node) or "").split())  # type: ignore[arg-type]


def _heirs(tree: ast.AST) -> dict[str, str]:
    """For every private class of a file the first public class in it that inherits from it, at whatever distance."""
    classes = [node for node in ast.iter_child_nodes(tree) if isinstance(node, ast.ClassDef)]
    bases = {node.name: [base.id for base in node.bases if isinstance(base, ast.Name)] for node in classes}

    def ancestors(name: str) -> list[str]:
        return [one for base in bases.get(name, ()) for one in (base, *ancestors(base))]

    public = [name for name in bases if not name.startswith("_")]
    return {private: heir for heir in reversed(public) for private in ancestors(heir) if private.startswith("_")}


def missing(places: dict[tuple[str, str, str], dict[str, None]]) -> list[str]:
    """Statements that no code names."""
    return [
        f"{paper} {kind} {number}"
        for paper, kinds in ITEMS.items()
        for kind, numbers in kinds.items()
        for number in numbers
        if not places.get((paper, kind, str(number)))
    ]


def papers_page() -> str:
    """The page *from paper to code*."""
    places = collect()
    lines = [
        *_INTRODUCTION.splitlines(),
        "",
        "## The papers",
        "",
        "| called here | title | authors |",
        "|---|---|---|",
        *(f"| {paper} | {title} | {authors} |" for paper, (title, authors) in PAPERS.items()),
        "",
        "After such a name a number in brackets is an equation, `SFM (133)`, and a bare one a section, `KME 6.1`.",
        "",
    ]
    for paper, (title, _) in PAPERS.items():
        lines += [f"## {paper}: {title}", "", "| in the paper | in the code |", "|---|---|"]
        for kind, numbers in ITEMS[paper].items():
            for number in numbers:
                code = ", ".join(places.get((paper, kind, str(number)), {})) or "**missing**"
                lines.append(f"| {kind} {number} | {code} |")
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    """Write what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--papers", action="store_true", help="only docs/papers.md")
    only_papers = parser.parse_args().papers
    (DOCS / "papers.md").write_text(papers_page(), encoding="utf-8")
    lacking = missing(collect())
    print(f"papers.md: {len(lacking)} missing" + (": " + ", ".join(lacking) if lacking else ""))
    if not only_papers:
        from pictures import draw_all

        for path in draw_all(DOCS / "figures"):
            print(path.name)


if __name__ == "__main__":
    main()
