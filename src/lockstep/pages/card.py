"""Card: the README.md of a classifier on the Hugging Face Hub, with the metadata that the Hub
reads.
"""

from collections.abc import Sequence

from lockstep.config.recipe import Recipe
from lockstep.files import Record
from lockstep.pages.page import template
from lockstep.text import cell_text, words_of


def card(repository: str, recipe: Recipe, result: Record, classes: Sequence[str]) -> str:
    """Return the card of the classifier in `repository`, OWNER/NAME, by the result of its run."""
    from huggingface_hub import EvalResult, ModelCardData

    accuracy = result["accuracy"][recipe.own_weights]
    evaluation = EvalResult(
        task_type="image-classification",
        dataset_type=recipe.dataset,
        dataset_name=recipe.dataset,
        dataset_split=recipe.evaluated_split,
        metric_type="accuracy",
        metric_value=accuracy,
    )
    data = ModelCardData(
        library_name="lockstep",
        pipeline_tag="image-classification",
        tags=["reproducible"],
        metrics=["accuracy"],
        model_name=repository.partition("/")[2],
        eval_results=[evaluation],
    )
    return template("lockstep.pages", "card.md.jinja").render(
        head=data.to_yaml(),
        repository=repository,
        recipe=recipe,
        classes=classes,
        result=result,
        accuracy=accuracy,
        words=words_of(recipe.multi_label),
        cell=cell_text,
    )
