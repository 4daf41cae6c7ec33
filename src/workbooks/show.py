"""What belongs to an exercise on a page, folded: hints, solution, answers, figures."""

import html
import io

import matplotlib.pyplot as plt
from IPython.display import HTML, Markdown

from transformer_circuits.figures.style import themed
from workbooks.check import PASSED
from workbooks.exercises import EXERCISES

TITLES = {"Prediction": "Answer to Predict", "Afterward": "Answer to Afterward"}  # of folded answers


def helped(name: str) -> Markdown:
    """Return an exercise's hints and its solution, each folded."""
    hints = {f"Hint {i}": hint for i, hint in enumerate(EXERCISES[name].hints, start=1)}
    return folded(hints | {"Solution": f"```python\n{EXERCISES[name].code}```"})


def answered(name: str, **texts: str) -> Markdown:
    """Return the answers to a workbook's questions (keys of TITLES), and what exercises.yml answers, folded until the
    check has passed."""
    fixed = EXERCISES[name].afterward
    texts |= {"Afterward": fixed} if fixed else {}
    answers = {TITLES[question]: text for question, text in texts.items()}
    return folded(answers, unfolded=name in PASSED)


def folded(texts: dict[str, str], unfolded: bool = False) -> Markdown:
    fold = f"<details{' open' * unfolded}><summary>{{}}</summary>\n\n{{}}\n\n</details>"
    return Markdown("\n\n".join(fold.format(title, text) for title, text in texts.items()))


def drawn(name: str, alt: str, caption: str) -> HTML:
    """Return the current figure of matplotlib with its caption, folded until the check has passed. The figure is inside
    the fold: JupyterLab opens folded outputs when all cells are run."""
    image = io.StringIO()
    plt.savefig(image, format="svg", bbox_inches="tight")
    plt.close()
    ground = f'<div style="background: var(--tc-page, #fff)">{themed(image.getvalue(), alt, name)}</div>'
    picture = f"{ground}<p>{html.escape(caption)}</p>"
    return HTML(f"<details{' open' * (name in PASSED)}><summary>What the function finds</summary>{picture}</details>")
