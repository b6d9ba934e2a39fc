"""Capture of conversations: from an agent's messages to exactly the tokens the engine sees, and from sampled tokens
back to a message. Plain functions and two objects around the tokenizer: no store, no network, no engine.

A request goes through it like this: `conversation.answered` names its beginnings, `tree.Tree` finds the parent among
the known turns and says which branch is continued or begun, `render.Template` gives the environment's tokens
(`appended` behind the parent's, or `first` where there is none). When the engine has answered, `message.Reader` makes
the message of its tokens, and `conversation.after` the node of the new turn.
"""
