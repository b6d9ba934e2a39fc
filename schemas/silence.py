"""Why a server did not answer, in a person's words: what client libraries say names their insides.

For whoever raises `Unreachable`; the library's own error stays its cause, for logs.
"""

import re

from .errors import one_line

REASONS = {
    r"refused|os error 111": "nothing listens there",
    r"not known|failed to lookup|dns error|name resolution|could not translate host": "its host name is not known",
    r"no route to host|unreachable host|network is unreachable": "no way leads to that host",
    r"invalid ?ur[il]|relativeurl|empty host|invalid port|invalidport": "that is no address",
    r"no such file": "there is no such socket",
    r"permission denied|unauthenticated": "it does not let us in",
    r"certificate|tls|ssl negotiation": "no secure connection could be made",
    r"invalid size|invalid compression|h2 protocol|http2 error": "what listens there is another server",
    r"time.?out|timed out|deadline|cancelled": "it took too long",
    r"clos|reset|broken pipe|terminat|shutting down|transport|eof|lost": "the connection was lost",
}
"""The first that is found in what the library said."""


def why_silent(error: object) -> str:
    """PostgreSQL's own refusals (a password, a database) are passed on; of anything unknown, the library's line."""
    said = one_line(error) or type(error).__name__
    if refused := re.search(r"FATAL:\s+(.+?)(?=$| connection to server| Multiple )", said):
        return f"it says: {refused.group(1)}"
    for pattern, reason in REASONS.items():
        if re.search(pattern, said, re.IGNORECASE):
            return reason
    return said
