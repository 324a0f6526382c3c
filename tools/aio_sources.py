"""Finding things in the sources that `generate_aio.py` reads."""

import ast
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
SOURCES: Final = ROOT / "src"

Function = ast.FunctionDef


class OutOfDate(Exception):
    """A table here speaks of something the sources do not have."""


def parsed(module: str) -> ast.Module:
    """Return the source of a module."""
    path = SOURCES.joinpath(*module.split(".")).with_suffix(".py")
    return ast.parse(path.read_text())


def class_of(tree: ast.Module, name: str) -> ast.ClassDef:
    """Return the class called `name`. Raises OutOfDate."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return node
    raise OutOfDate(f"there is no class {name}")


def function_of(tree: ast.Module, name: str) -> Function:
    """Return the function called `name`. Raises OutOfDate."""
    for node in tree.body:
        if isinstance(node, Function) and node.name == name:
            return node
    raise OutOfDate(f"there is no function {name}")


def text_after(source: ast.ClassDef, node: ast.AnnAssign) -> str:
    """Return the string that documents an attribute."""
    place = source.body.index(node) + 1
    if place < len(source.body):
        following = source.body[place]
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            return str(following.value.value)
    return ""


def defined(node: ast.stmt) -> set[str]:
    """Return the names that a statement of a module gives to something."""
    if isinstance(node, ast.ClassDef | Function):
        return {node.name}
    if isinstance(node, ast.Assign):
        return {target.id for target in node.targets if isinstance(target, ast.Name)}
    return set()


def is_property(method: Function) -> bool:
    """Tell whether a method is used like an attribute."""
    return any(ast.unparse(each) == "property" for each in method.decorator_list)
