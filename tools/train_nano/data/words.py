"""Word lists of the generators, and common words that only the tokenizer sees."""

NAMES = """Ada Adam Alice Amir Anna Ben Bella Carl Chen Clara Dan Dina Elena Emma Eva Felix Finn Grace
Hana Hugo Ian Ines Ivan Jack Jane Jonas Julia Kai Kate Lara Leo Lena Lily Lucas Maya Max Mia Milo Nina
Noah Nora Olga Oscar Omar Paul Petra Priya Rosa Ravi Sam Sara Sofia Tara Tim Tom Uma Vera Victor Wei Yara
Yuki Zoe""".split()

# plural, singular
THINGS = [tuple(pair.split("/")) for pair in """apples/apple oranges/orange pears/pear plums/plum
lemons/lemon bananas/banana peaches/peach books/book pens/pen pencils/pencil stamps/stamp coins/coin
marbles/marble cards/card stickers/sticker shells/shell stones/stone buttons/button beads/bead
candles/candle cookies/cookie cakes/cake eggs/egg muffins/muffin tickets/ticket flowers/flower roses/rose
tomatoes/tomato carrots/carrot potatoes/potato nuts/nut toys/toy balls/ball kites/kite cups/cup
plates/plate bottles/bottle photos/photo chairs/chair bricks/brick""".split()]

CONTAINERS = [tuple(pair.split("/")) for pair in """boxes/box bags/bag baskets/basket jars/jar
crates/crate packs/pack trays/tray shelves/shelf drawers/drawer rows/row""".split()]

SHOPS = "shop market store bakery kiosk stall".split()
VEHICLES = "train bus car truck cyclist boat tram runner".split()

COMMON = """a able about above across act add after again against age ago air all almost alone along
already also although always am among an and animal another answer any anything appear are area arm art
as ask at away back bad base be beautiful became because become bed been before began begin behind being
below best better between big bird black blue board boat body book both bottom box boy bring brother
brought build building built business but buy by call called came can cannot car care carry case cat
cause center certain chance change character check child children choose city class clear close code
cold color come common company complete computer consider contain control cool could country course cover
cross cry cut dark data day deep describe develop did die different difficult direct discover do does dog
done door down draw dream drive dry during each early earth ease east eat effect either else end energy
engine English enough even evening ever every example exercise experience explain eye face fact fall
family far farm fast father feel feet few field figure file fill final find fine finish fire first fish
floor fly follow food foot for force form forward found four free fresh friend from front full function
game garden gave general get girl give glass go goal gold gone good got great green ground group grow had
half hand happen happy hard has have he head hear heard heart heat heavy held help her here high him his
history hold home hope horse hot hour house how however human hundred idea if imagine important in
include inside instead interest into is island it job join just keep kept key kind king knew know
knowledge land language large last late later laugh law lay lead learn least leave left less let letter
level lie life light like line list listen little live local long look lost lot love low machine made main
make man many map mark market matter may me mean measure meet memory men middle might mile milk million
mind minute miss model moment money month moon more morning most mother mountain move much music must my
name nation nature near need never new next night no nor north not note nothing notice now number object
of off offer office often oh old on once one only open or order other our out outside over own page paint
paper parent part pass past pattern pay people perhaps person picture piece place plain plan plane plant
play please point poor possible power present press pretty problem produce product program project proper
prove provide public pull push put question quick quite rain ran reach read ready real reason record red
remember repeat report rest result return rich ride right river road rock room round rule run safe said
same sat save saw say school science sea second see seem self send sense sentence serve set seven several
shall shape she ship short should show side sight sign simple since sing sister sit six size sky sleep
slow small snow so some something song soon sort sound south space speak special speed spell stand star
start state station stay step still stood stop story street strong student study such summer sun sure
surface system table take talk teach tell ten test text than thank that the their them then there these
they thing think third this those though thought thousand three through time to today together told too
took top toward town travel tree true try turn two type under understand unit until up upon us use usual
value very view visit voice wait walk wall want war warm was watch water wave way we wear week weight well
went were west what wheel when where whether which while white who whole whose why wide wife will wind
window winter wish with without woman wonder wood word work world would write wrong year yellow yes yet
you young your def class import return print self true false none null string integer object type
description name required properties parameters int float bool if else for while in not and or error
http json https www com org""".split()
