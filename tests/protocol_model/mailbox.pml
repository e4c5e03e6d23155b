/* The mailbox protocol of docs/protocol.md between two ranks, checked exhaustively.
 *
 * Two layers of two exchanges each, two words an exchange, three steps. The nonce has one bit, so
 * step 2 begins a round (it clears) and step 3 uses the tags of step 1 again. Any step may be
 * abandoned after any exchange, and then either rank may still push for the next one. Either rank may
 * be late anywhere: every interleaving is explored.
 *
 * Checked: a word taken for (step, exchange) is that step's and that exchange's; no rank waits for
 * ever (an invalid end state). Mutations, each of which must fail:
 *   NO_FENCE         a step begins without waiting for the peer
 *   NO_CLEAR         a round begins without clearing the words
 *   NO_SECOND_FENCE  a round begins with the first fence only
 *   END_STEP         the number in the tags advances at the end of a step, so not in an abandoned one
 *   ONE_SITE         all exchanges use the same words
 *   EARLY_PUSH       an exchange is pushed before the last word of the one before it has been read
 */
#define STEPS 3
#define EXCHANGES 4
#define WORDS 2
#define SITES 2

#ifdef ONE_SITE
#define SITE(x) 0
#else
#define SITE(x) ((x) % 2)
#endif

#define LAYER(x) ((x) / 2)
#ifdef END_STEP
#define NONCES 4 /* no round ends within the model: only the numbering is wrong */
#else
#define NONCES 2
#endif
#define TAG(n, x) (((n) % NONCES) * 4 + LAYER(x) + 1)
#define BEGINS_ROUND(n) ((n) % NONCES == 0)
#define AT(owner, x, w) ((owner) * SITES * WORDS + SITE(x) * WORDS + (w))

/* Words in the region of their owner, pushed by the peer: the tag, and for the proof whose it is. */
byte tag[2 * SITES * WORDS];
byte truth[2 * SITES * WORDS];
#define TRUTH(s, x) ((s) * EXCHANGES + (x))

/* fence[owner] is what the peer wrote into the owner's region. */
byte fence1[2];
byte fence2[2];

/* Exchanges a step completes; EXCHANGES: not abandoned. The same on both ranks. */
byte stop[STEPS + 1];

#define PUSH(s, n, x)                          \
  w = 0;                                       \
  do                                           \
  :: w < WORDS ->                              \
     d_step {                                  \
       tag[AT(1 - me, x, w)] = TAG(n, x);      \
       truth[AT(1 - me, x, w)] = TRUTH(s, x);  \
       w++                                     \
     }                                         \
  :: else -> break                             \
  od

#define READ(s, n, x, count)                        \
  w = 0;                                            \
  do                                                \
  :: w < (count) ->                                 \
     atomic {                                       \
       tag[AT(me, x, w)] == TAG(n, x);              \
       assert(truth[AT(me, x, w)] == TRUTH(s, x));  \
       w++                                          \
     }                                              \
  :: else -> break                                  \
  od

proctype Rank(byte me) {
  byte step = 0;
  byte number = 0;  /* in the tags: the step, unless END_STEP */
  byte x;
  byte w;
  do
  :: step < STEPS ->
     step++;
#ifndef NO_FENCE
     fence1[1 - me] = step;
     fence1[me] >= step;
#endif
#ifndef END_STEP
     number = step;
     if
     :: BEGINS_ROUND(number) ->
#ifndef NO_CLEAR
        w = 0;
        do
        :: w < SITES * WORDS ->
           d_step {
             tag[me * SITES * WORDS + w] = 0;
             truth[me * SITES * WORDS + w] = 0;
             w++
           }
        :: else -> break
        od;
#endif
#ifndef NO_SECOND_FENCE
        fence2[1 - me] = step;
        fence2[me] >= step
#endif
     :: else -> skip
     fi;
#endif
     x = 0;
     do
     :: x < stop[step] ->
        PUSH(step, number, x);
#ifdef EARLY_PUSH
        READ(step, number, x, WORDS - 1);
        if
        :: x + 1 < stop[step] -> PUSH(step, number, x + 1)
        :: else -> skip
        fi;
#endif
        READ(step, number, x, WORDS);
        x++
     :: else -> break
     od;
     if
     :: stop[step] < EXCHANGES -> PUSH(step, number, stop[step])
     :: skip
     fi;
#ifdef END_STEP
     if
     :: stop[step] == EXCHANGES -> number++
     :: else -> skip
     fi;
#endif
     x = 0;
     w = 0
  :: else -> break
  od
}

init {
  byte s = 1;
  byte w0;
  atomic {
    do
    :: s <= STEPS -> select (w0 : 0 .. EXCHANGES); stop[s] = w0; s++
    :: else -> break
    od;
    run Rank(0);
    run Rank(1)
  }
}
