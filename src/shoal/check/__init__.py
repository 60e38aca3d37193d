"""Static analysis of training code: findings (`shoal check`) and the SDK lines to add (`shoal instrument`).

Nothing here executes or imports the code that is analysed. Doubtful cases are not reported.
"""
