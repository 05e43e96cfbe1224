"""Count lines of code: without docstrings, comments, blank lines, imports and ``__all__``.

    python scripts/count_code.py [FOLDER]
    git archive COMMIT src | tar -x -C OTHER && python scripts/count_code.py OTHER/src/pour

Prints one line per room (subpackage) and the total.
"""

from __future__ import annotations

import argparse
import ast
import tokenize
from collections import Counter
from pathlib import Path

NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def is_code(node: ast.AST) -> bool:
    """Return False for imports, docstrings (also of fields) and ``__all__``."""
    match node:
        case ast.Import() | ast.ImportFrom() | ast.Expr(value=ast.Constant(value=str())):
            return False
        case ast.Assign(targets=[ast.Name(id="__all__")]):
            return False
    return True


def code_lines(source: str) -> int:
    """Return the number of lines of ``source`` that contain code."""
    counted: set[int] = set()
    for token in tokenize.generate_tokens(iter(source.splitlines(keepends=True)).__next__):
        if token.type not in NO_CODE:
            counted.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.stmt) and not is_code(node):
            counted.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(counted)


def main() -> None:
    """Print the counts of the folder of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = Path(__file__).resolve().parent.parent / "src" / "pour"
    parser.add_argument("folder", nargs="?", type=Path, default=default, metavar="FOLDER")
    folder = parser.parse_args().folder
    code: Counter[str] = Counter()
    files: Counter[str] = Counter()
    for file in sorted(folder.rglob("*.py")):
        room = (*file.relative_to(folder).parts[:-1], "(top level)")[0]
        code[room] += code_lines(file.read_text(encoding="utf-8"))
        files[room] += 1
    for room, lines in code.most_common():
        print(f"{room:12}{lines:7,} lines in {files[room]:3} files")
    print(f"{'total':12}{code.total():7,} lines in {files.total():3} files")


if __name__ == "__main__":
    main()
