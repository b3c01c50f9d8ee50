"""Answers: the pictures of all requests, from the bytes of a file to a prediction, within a bounded memory."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from lockstep import numerics
from lockstep.classify.predict import Classifier, Prediction
from lockstep.data.decode import stored_pixels
from lockstep.errors import DATA, LockstepError

TOP = 5  # classes in an answer
PIXEL_LIMIT = 55_000_000  # of a picture, as stored. A phone's photo has up to 50 million.
_SMALL = 2_000_000  # pixels of a picture that is decoded beside others
_WORKERS = 4  # threads that decode small pictures and classify, at most

Pixels: TypeAlias = NDArray[np.uint8]
Answer: TypeAlias = tuple[Prediction, Pixels | None]  # None if the picture cannot be read


class Answers:
    """Decodes and classifies pictures, each by itself.

    A decoded picture takes 1 to 16 bytes a pixel, however small its file is. So large ones are decoded one at a time,
    in a thread of their own, and small ones do not wait for them. At most `PIXEL_LIMIT` + `_WORKERS` * `_SMALL` pixels
    are decoded at a time.

    Attributes:
        unanswered: the number of pictures that have no answer yet.
    """

    def __init__(self, classifier: Classifier) -> None:
        self.unanswered = 0
        self._classifier = classifier
        self._workers = numerics.pool(min(_WORKERS, numerics.workers()), "classify")
        self._large = ThreadPoolExecutor(1, "decode")

    async def answers(self, pictures: Sequence[bytes]) -> list[Answer]:
        """Return the answer for each picture. Raises: LockstepError if this machine cannot decode or classify them."""
        self.unanswered += len(pictures)
        try:
            return await asyncio.gather(*map(self._answer, pictures))
        finally:
            self.unanswered -= len(pictures)

    async def _answer(self, picture: bytes) -> Answer:
        run = asyncio.get_running_loop().run_in_executor
        try:
            answer = await run(self._workers, self._small_answer, picture)
            if answer is None:
                pixels = await run(self._large, self._classifier.pixels, picture)
                answer = await run(self._workers, self._classified, pixels)
            return answer
        except LockstepError as error:
            if error.code != DATA:
                raise
            return Prediction(0, error=str(error)), None

    def _small_answer(self, picture: bytes) -> Answer | None:
        """Return the answer for a picture, or None if it is a large one."""
        large = stored_pixels(picture, PIXEL_LIMIT) > _SMALL
        return None if large else self._classified(self._classifier.pixels(picture))

    def _classified(self, pixels: Pixels) -> Answer:
        return self._classifier.predict_pixels(pixels, TOP), pixels

    def close(self) -> None:
        """End the threads, without the work that they have not begun."""
        for pool in (self._workers, self._large):
            pool.shutdown(wait=False, cancel_futures=True)
