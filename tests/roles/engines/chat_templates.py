"""Chat templates in the style of published families, as the files of a tokenizer's directory."""

IM = "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
IM_PROMPT = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
CHATML = "{% for message in messages %}" + IM + "{% endfor %}" + IM_PROMPT

LLAMA2 = """
{%- if messages[0]['role'] == 'system' %}
    {%- set system = '<<SYS>>\n' + messages[0]['content'] + '\n<</SYS>>\n\n' %}
    {%- set rest = messages[1:] %}
{%- else %}
    {%- set system = '' %}
    {%- set rest = messages %}
{%- endif %}
{%- for message in rest %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('roles must alternate user/assistant') }}
    {%- endif %}
    {%- set content = system + message['content'] if loop.first else message['content'] %}
    {%- if message['role'] == 'user' %}
        {{- bos_token + '[INST] ' + content.strip() + ' [/INST]' }}
    {%- else %}
        {{- ' ' + content.strip() + ' ' + eos_token }}
    {%- endif %}
{%- endfor %}"""

LLAMA3 = """
{%- set loop_messages = messages %}
{%- for message in loop_messages %}
    {%- set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'
        + message['content'] | trim + '<|eot_id|>' %}
    {%- if loop.index0 == 0 %}{%- set content = bos_token + content %}{%- endif %}
    {{- content }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
"""

LLAMA31 = """{{- bos_token }}
{%- if custom_tools is defined %}{%- set tools = custom_tools %}{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}{%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}{%- set date_string = "26 Jul 2024" %}{%- endif %}
{%- endif %}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\n\n" }}
{%- if tools is not none %}
    {{- "Environment: ipython\n" }}
    {%- for tool in tools %}{{- tool | tojson(indent=4) }}{%- endfor %}
{%- endif %}
{{- "Today Date: " + date_string + "\n\n" + system_message + "<|eot_id|>" }}
{%- for message in messages %}
    {%- if 'tool_calls' in message %}{{- raise_exception("no tools here") }}
    {%- else %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' }}
        {{- message['content'] | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
"""

MISTRAL = """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set ns = namespace(index=0, found=false) %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or message.tool_calls is defined) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("conversation roles must alternate") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\n\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- else %}
        {{- " " + message["content"] | trim + eos_token }}
    {%- endif %}
{%- endfor %}
"""

GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}"
    "{% if (message['role'] == 'assistant') %}{% set role = 'model' %}"
    "{% else %}{% set role = message['role'] %}{% endif %}"
    "{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}"
)

ZEPHYR = """{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>\n' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>\n' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>\n'  + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}"""

QWEN25 = """{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- for tool in tools %}{{- "\n" }}{{- tool | tojson }}{%- endfor %}
    {{- "<|im_end|>\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}
    {%- else %}
        {{- '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first)
        or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}
"""

QWEN3 = """{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set reasoning_content = '' %}
    {%- if message.reasoning_content is string %}
        {%- set reasoning_content = message.reasoning_content %}
    {%- elif '</think>' in message.content %}
        {%- set reasoning_content = message.content.split('</think>')[0].split('<think>')[-1] %}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\n' }}
    {%- if loop.index0 > ns.last_query_index and reasoning_content %}
        {{- '<think>\n' + reasoning_content.strip('\n') + '\n</think>\n\n' }}
    {%- endif %}
    {{- message.content.split('</think>')[-1].lstrip('\n') + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}
"""

TOOLS = (
    "{% if tools is not none %}{% for tool in tools %}{{ tool }}{% endfor %}{% endif %}" + CHATML
)
DOCUMENTS = (
    "{% if documents is not none %}{{ documents | length }}{% else %}no documents\n{% endif %}"
    + CHATML
)
TOOLS_DEFINED = "{% if tools is defined %}tools: {{ tools }}\n{% endif %}" + CHATML
BLOCKS = """
    {% for message in messages %}
        {% if message.role == 'user' %}
    U: {{ message.content }}
        {% else %}
    O: {{ message.content }}
        {% endif %}
    {% endfor %}
  {% if add_generation_prompt %}
A:{% endif %}
"""
CONTROLS = (
    "{% for message in messages %}{% if message.role == 'system' %}{% continue %}{% endif %}"
    "{{ message.content }}\n{% if loop.index > 3 %}{% break %}{% endif %}{% endfor %}"
)
MACRO = (
    "{% macro turn(role, text) %}<|{{ role }}|>{{ text }}{% endmacro %}"
    "{% for m in messages %}{{ turn(m.role, m.content) }}{{ eos_token }}\n{% endfor %}"
    "{{ turn('assistant', '') if add_generation_prompt }}"
)
GENERATION = (
    "{% for message in messages %}{% if message.role == 'assistant' %}"
    "{% generation %}{{ message.content + eos_token }}{% endgeneration %}"
    "{% else %}{{ message.role + ': ' + message.content + '\n' }}{% endif %}{% endfor %}"
)
DATE = "{{ strftime_now('%A %d %B %Y, %H:%M') }}\n" + CHATML

SINGLE = {
    "chatml": CHATML,
    "chatml-default-system": "{% if messages[0].role != 'system' %}"
    "{{ '<|im_start|>system\nBe helpful.<|im_end|>\n' }}{% endif %}" + CHATML,
    "chatml-always-prompts": CHATML.replace(IM_PROMPT, "<|im_start|>assistant\n"),
    "llama2": LLAMA2,
    "llama3": LLAMA3,
    "llama3.1-tools-date": LLAMA31,
    "mistral": MISTRAL,
    "gemma": GEMMA,
    "zephyr": ZEPHYR,
    "phi3": "{% for message in messages %}{{'<|' + message['role'] + '|>' + '\n' + "
    "message['content'] + '<|end|>\n'}}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}",
    "phi4": "{% for message in messages %}{{ '<|im_start|>' + message.role + '<|im_sep|>' + "
    "message.content + '<|im_end|>' }}{% endfor %}<|im_start|>assistant<|im_sep|>",
    "vicuna": "{% for message in messages %}{{ message.role | upper }}: {{ message.content }}"
    "{{ eos_token if message.role == 'assistant' else ' ' }}{% endfor %}ASSISTANT:",
    "alpaca": "{{ bos_token }}{% for message in messages %}### {{ message.role | title }}:\n"
    "{{ message.content }}\n\n{% endfor %}### Response:\n",
    "qwen2.5": QWEN25,
    "qwen3": QWEN3,
    "tools-is-not-none": TOOLS,
    "documents-is-not-none": DOCUMENTS,
    "tools-is-defined": TOOLS_DEFINED,
    "blocks-trimmed": BLOCKS,
    "loop-controls": CONTROLS,
    "macro": MACRO,
    "generation": GENERATION,
    "date": DATE,
    "tojson": "{{ messages | tojson }}",
    "tojson-options": "{{ messages | tojson(indent=2, sort_keys=true, ensure_ascii=true) }}",
    "special-tokens": "{{ [bos_token, eos_token, unk_token, pad_token] | join('|') }}" + CHATML,
    "undefined-names": "{{ nothing }}{{ sep_token }}{% if enable_thinking %}x{% endif %}" + CHATML,
    "dict": "{% set names = dict(user='U', system='S', assistant='A') %}"
    "{% for message in messages %}{{ names[message.role] }}: {{ message.content }}\n{% endfor %}",
    "filters": "{% for m in messages %}{{ m.content | trim | replace('\n', ' ') | length }} "
    "{{ (m.content | list | first) if m.content }}{{ m.items() | list | length }}{% endfor %}",
    "raises-always": "{{ raise_exception('not for chats') }}",
    "raises-for-system": "{% for m in messages %}{% if m.role == 'system' %}"
    "{{ raise_exception('no system') }}{% endif %}{{ m.content }}{% endfor %}",
    "divides-by-zero": "{{ 1 / 0 }}",
    "changes-messages": "{% set x = messages.append(1) %}" + CHATML,
}
"""Templates that a directory holds as its only one."""

NAMED = [
    {"name": "default", "template": CHATML},
    {"name": "tool_use", "template": "tools {{ tools }}" + CHATML},
]

FILES = {
    **{name: {"chat_template.jinja": text} for name, text in SINGLE.items()},
    "in-config": {"chat_template": ZEPHYR},
    "file-before-config": {"chat_template": ZEPHYR, "chat_template.jinja": LLAMA3},
    "named-list": {"chat_template": NAMED},
    "named-dict": {"chat_template": {one["name"]: one["template"] for one in NAMED}},
    "named-without-default": {"chat_template": NAMED[1:]},
    "syntax-error": {"chat_template.jinja": "{% for message in messages %}"},
}
"""Places of a template: ``chat_template`` is the key of ``tokenizer_config.json``."""
