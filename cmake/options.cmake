# SPDX-License-Identifier: MIT
# What pvx's own tests, benchmarks and examples are compiled with. Never part of pvx::pvx.

# Warnings under which every header must be clean.
set(pvx_warnings
    -Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow -Wold-style-cast -Wcast-align -Wcast-qual
    -Wzero-as-null-pointer-constant -Wundef)

add_library(pvx_test_options INTERFACE)
target_link_libraries(pvx_test_options INTERFACE pvx::pvx)
target_include_directories(pvx_test_options INTERFACE "${PROJECT_SOURCE_DIR}/tests")
target_compile_options(pvx_test_options INTERFACE ${pvx_warnings} -Werror)
if(PVX_SANITIZE)
  target_compile_options(pvx_test_options INTERFACE
                         -fsanitize=${PVX_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(pvx_test_options INTERFACE -fsanitize=${PVX_SANITIZE})
endif()
