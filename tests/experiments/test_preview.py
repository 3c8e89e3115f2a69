"""The examples of a dry run."""

from configs.lengths import scan as recipe
from jaxformer.experiments.cells import plan
from jaxformer.experiments.preview import examples

TRAIN = "IN: walk left OUT: I_TURN_LEFT I_WALK\nIN: jump OUT: I_JUMP\nIN: jump OUT: I_JUMP\n"
TRAIN += "IN: jump right OUT: I_TURN_RIGHT I_JUMP\n"  # kept for validation
TESTS = "IN: run twice OUT: I_RUN I_RUN\nIN: look thrice OUT: I_LOOK I_LOOK I_LOOK\n"


def test_a_length_that_the_files_have_no_example_of_is_shown_as_none(tmp_path):
    (tmp_path / "tasks_train_length.txt").write_text(TRAIN)
    (tmp_path / "tasks_test_length.txt").write_text(TESTS)
    c = recipe.get_config()
    c.data.path, c.data.task.split, c.data.task.max_length = str(tmp_path), "length", 2
    c.model.num_layers, c.model.d_model = 1, 8
    shown = examples(plan(c.to_dict(), [], 1, lengths="1:4"))["Examples"]
    assert [(line["split"], line["length"], line["example"]) for line in shown[1:]] == [
        ("test", "1", "none"),
        ("test", "2", "<s> run twice <sep> I_RUN I_RUN </s>"),
        ("test, beyond training", "3", "<s> look thrice <sep> I_LOOK I_LOOK I_LOOK </s>"),
        ("test, beyond training", "4", "none"),
    ]
