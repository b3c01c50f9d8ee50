"""Groups: what a regular expression finds in paths, computed by a process that may take a limited
time.

The expression may come from a stranger with a recipe, and the search for some takes longer than
anybody waits. This module is a program: it reads [pattern, paths] as JSON, and prints the name of
each path's group, "" if it has none.
"""

import json
import re
import resource
import sys


def main() -> None:
    """Print the groups, or exit with what is wrong with the pattern."""
    pattern, paths = json.load(sys.stdin)
    limit = 2 + len(paths) // 1000  # seconds of CPU time
    allowed = resource.getrlimit(resource.RLIMIT_CPU)[1]
    if allowed == resource.RLIM_INFINITY or limit < allowed:  # else the system ends it earlier
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
    try:
        expression = re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        sys.exit(str(error))
    matches = map(expression.search, paths)
    json.dump(
        [(match[min(expression.groups, 1)] or "") if match else "" for match in matches], sys.stdout
    )


if __name__ == "__main__":
    main()
