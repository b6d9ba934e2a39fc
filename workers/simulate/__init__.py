"""What a run would do: its own ledger, dispatch and policies under virtual time, with engines and a trainer that only
take time. A tool beside the processes; none of them imports it."""
