"""`transformers`: its names are made when they are first asked for, and threads that ask at once get an ImportError.

`with loading:` around its imports, in processes that load from several threads.
"""

import threading

loading = threading.RLock()
