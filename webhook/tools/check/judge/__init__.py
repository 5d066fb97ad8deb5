"""What `vramwarden check` judges: facts of a cluster in, one finding per check out.

| module | |
| --- | --- |
| findings | a finding, and what could not be seen |
| facts | what is known of a cluster, and how it is read from its objects |
| cluster | the API server, rights, other products' webhooks |
| nodes | nodes with GPUs, before and after the installation |
| webhook | whether ours is there, is trusted, answers, and follows its policy |
| fence | what the API server holds by itself |
| running | agents, sentries, and pods with VRAM |
| table | which checks there are: id, title, when |

A check is a free function from `Facts` to a finding, or None where there is nothing to judge.
"""
