"""Tables of molecules, some of which are none."""

from pathlib import Path

SMILES = ["CCO", "c1ccccc1", "CC(=O)O", "C1CC", "", "CN(C)C", "not a molecule", "O=C=O", "C[N+](C)(C)C", "ClC(Cl)Cl"]
"""Three of these are no molecules."""


def write_csv(path: Path, rows: int, start: int = 0) -> Path:
    """A table of molecules, no two rows alike."""
    lines = [f"m{n},{'C' * (n // 10 % 7)}{SMILES[n % 10]},{n / 7:.3f}" for n in range(start, start + rows)]
    path.write_text("id,smiles,weight\n" + "\n".join(lines) + "\n")
    return path
