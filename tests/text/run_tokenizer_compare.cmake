# Runs tools/tokenizer_compare.py with the Python of $MONOLAYER_PYTHON or .venv; without one the
# script prints why and the test counts as skipped (its output matches SKIP_REGULAR_EXPRESSION).
set(python "$ENV{MONOLAYER_PYTHON}")
if(NOT python)
  set(python ${SOURCE}/.venv/bin/python)
endif()
if(NOT EXISTS ${python})
  message(STATUS "skipped: no ${python}")
  return()
endif()
execute_process(COMMAND ${python} ${SOURCE}/tools/tokenizer_compare.py --dump ${DUMP}
                        --megabytes ${MEGABYTES} RESULT_VARIABLE result)
if(result EQUAL 77)
  message(STATUS "skipped: ${python} has no tokenizers")
elseif(NOT result EQUAL 0)
  message(FATAL_ERROR "tokenizer_compare.py: ${result}")
endif()
