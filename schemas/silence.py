"""Why a server did not answer, in a person's words: what client libraries say names their insides.

For whoever raises `Unreachable`; the library's own error stays its cause, for logs.
"""

import re

from .errors import one_line

REASONS = {
    r"refused|os error 111": "connection refused",
    r"not known|failed to lookup|dns error|name resolution|could not translate host": "unknown host",
    r"no route to host|unreachable host|network is unreachable": "no route to host",
    r"invalid ?ur[il]|relativeurl|empty host|invalid port|invalidport": "not a valid address",
    r"no such file": "no such socket",
    r"permission denied|unauthenticated": "access denied",
    r"certificate|tls|ssl negotiation": "the TLS handshake failed",
    r"invalid size|invalid compression|h2 protocol|http2 error": "a server of another kind answers there",
    r"time.?out|timed out|deadline|cancelled": "timed out",
    r"clos|reset|broken pipe|terminat|shutting down|transport|eof|lost": "connection lost",
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
