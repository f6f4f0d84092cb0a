"""Records of the module logging as events."""

import logging

from ._events import event


class LogHandler(logging.Handler):
    """Makes an event ``log_LEVEL(target, message)`` of each record: the logger's name, and the formatted message."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            event("log_" + record.levelname.lower(), target=record.name, message=self.format(record))
        except Exception:
            self.handleError(record)
