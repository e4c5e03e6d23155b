# Caches and the native chain.
find_package(GTest REQUIRED)
add_library(backend_cpu_testing STATIC random_model.cc native_harness.cc)
target_link_libraries(backend_cpu_testing PUBLIC monolayer_backend_cpu monolayer_flags GTest::gtest)
target_include_directories(backend_cpu_testing PUBLIC ${CMAKE_SOURCE_DIR}/tests)
monolayer_test(backend_cpu_native_invariance SOURCES native_invariance_test.cc DEPS backend_cpu_testing)
monolayer_test(backend_cpu_native_reference SOURCES native_reference_test.cc DEPS backend_cpu_testing)
