# Caches and the native chain.
find_package(GTest REQUIRED)
add_library(backend_cpu_testing STATIC random_model.cc native_harness.cc choice_tally.cc rank_harness.cc
            mono_harness.cc)
target_link_libraries(backend_cpu_testing PUBLIC monolayer_backend_cpu monolayer_flags GTest::gtest)
target_include_directories(backend_cpu_testing PUBLIC ${CMAKE_SOURCE_DIR}/tests)
monolayer_test(backend_cpu_native_invariance SOURCES native_invariance_test.cc DEPS backend_cpu_testing)
monolayer_test(backend_cpu_native_reference SOURCES native_reference_test.cc DEPS backend_cpu_testing)
monolayer_test(backend_cpu_native_oracle SOURCES native_oracle_test.cc DEPS backend_cpu_testing)
monolayer_test(backend_cpu_native_followed SOURCES native_followed_test.cc DEPS backend_cpu_testing)
monolayer_test(backend_cpu_native_faults SOURCES native_faults_test.cc DEPS backend_cpu_testing)
monolayer_test(backend_cpu_native_step SOURCES native_step_test.cc DEPS backend_cpu_testing)
monolayer_test(backend_cpu_native_traffic SOURCES native_traffic_test.cc DEPS backend_cpu_testing)
monolayer_test(backend_cpu_greedy SOURCES greedy_test.cc DEPS backend_cpu_testing)
monolayer_test(backend_cpu_cache SOURCES cache_test.cc DEPS backend_cpu_testing)
monolayer_test(backend_cpu_native_tp SOURCES native_tp_test.cc DEPS backend_cpu_testing)
monolayer_test(backend_cpu_mono_exact SOURCES mono_exact_test.cc DEPS backend_cpu_testing)
monolayer_test(backend_cpu_mono_process SOURCES mono_process_test.cc DEPS backend_cpu_testing)
monolayer_test(backend_cpu_mono_steps SOURCES mono_steps_test.cc
               DEPS backend_cpu_testing monolayer_engine)
add_test(NAME backend_cpu_mono_steps_long
         COMMAND backend_cpu_mono_steps_test --gtest_also_run_disabled_tests
                 --gtest_filter=*TenThousandSteps*)
set_tests_properties(backend_cpu_mono_steps_long PROPERTIES LABELS long TIMEOUT 3600)
monolayer_test(backend_cpu_mono_chain SOURCES mono_chain_test.cc DEPS backend_cpu_testing)
monolayer_test(backend_cpu_draft SOURCES draft_test.cc DEPS monolayer_backend_cpu)
