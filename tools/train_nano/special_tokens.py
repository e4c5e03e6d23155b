"""The 64-slot block of added tokens, in M3's order.

Slot i has id 200000 + i in M3's vocabulary and ORDINARY + i in nano's. Slots 61..63
are unassigned in both.
"""

ORDINARY = 1984  # byte symbols and merges, ids 0..1983
SLOTS = 64
VOCAB = ORDINARY + SLOTS

CONTENTS = [
    "]!p~[",  # 0 pad
    "<fim_prefix>", "<fim_middle>", "<fim_suffix>", "<fim_pad>",  # 1..4
    "<reponame>", "<filename>", "<gh_stars>",  # 5..7
    "<issue_start>", "<issue_comment>", "<issue_closed>",  # 8..10
    "<jupyter_start>", "<jupyter_text>", "<jupyter_code>", "<jupyter_output>",  # 11..14
    "<empty_output>",  # 15
    "<commit_before>", "<commit_msg>", "<commit_after>",  # 16..18
    "]~b]",  # 19 turn start
    "[e~[",  # 20 turn end, EOS
    "]!d~[",  # 21 unknown
    "<function_call>", "<code_interpreter>",  # 22, 23
    "]<]speech[>[", "]<]image[>[", "]<]video[>[",  # 24..26
    "]<]start of speech[>[", "]<]end of speech[>[",  # 27, 28
    "]<]start of image[>[", "]<]end of image[>[",  # 29, 30
    "]<]start of video[>[", "]<]end of video[>[",  # 31, 32
    "]<]vision pad[>[",  # 33
    "]~!b[",  # 34 begin of document
    "<jupyter_error>",  # 35
    "<add_file>", "<delete_file>", "<rename_file>", "<edit_file>",  # 36..39
    "<commit_message>", "<empty_source_file>", "<repo_struct>",  # 40..42
    "<code_context>", "<file_content>",  # 43, 44
    "<source_files>", "<pr_start>", "<review_comment>", "<filepath>", "<file_sep>",  # 45..49
    "<think>", "</think>",  # 50, 51 legacy pair
    "<tool_call>", "</tool_call>",  # 52, 53
    "]<]frame[>[", "]<]start of frame[>[", "]<]end of frame[>[",  # 54..56
    "<|content_altered_placeholder|>",  # 57
    "]<]minimax[>[",  # 58 tool namespace mark
    "<mm:think>", "</mm:think>",  # 59, 60
]

# Marks that the reasoning and tool parsers read must survive skip-special decoding.
NOT_SPECIAL = {50, 51, 52, 53, 58, 59, 60}

PAD = ORDINARY + 0
TURN = ORDINARY + 19
EOS = ORDINARY + 20
BOD = ORDINARY + 34
THINK = ORDINARY + 59
END_THINK = ORDINARY + 60


def is_special(slot: int) -> bool:
    return slot not in NOT_SPECIAL
