"""The progress display where stderr is a file."""

from jaxformer.progress import Lines


def test_lines_come_when_due_and_with_each_evaluation(capsys):
    lines = Lines(num_steps=25, every=10)
    for step in range(1, 26):
        lines.update(step, {"loss": float(step)})
    lines.update(25, {"loss": 25.0, "eval_loss": 2.5})
    lines.update(25, {"loss": 25.0, "eval_loss": 2.5})
    shown = capsys.readouterr().err.splitlines()
    assert shown == [
        "step 10/25 loss 10.000",
        "step 20/25 loss 20.000",
        "step 25/25 loss 25.000",
        "step 25/25 loss 25.000  validation 2.500",
    ]
