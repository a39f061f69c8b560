"""
What single tokens of cl100k_base and o200k_base the upper-bound tokenizer knows. Written by tools/make_lexicon.py.

Decides: nothing; it is a table. Only what is one token in both vocabularies is in it.
"""

from typing import Final

# Lowercase words by mask. Bit n of a mask says that form n is one token: the word alone and after a space,
# then the same for its capitalised and its uppercase form.
WORDS: Final[dict[int, str]] = {
    15: """\
cri had were would ey exception while could cause because being echo prot plate those context contin manager \
controller going different around dep layout override signed develop namespace catch during console against chem \
few another sit since something produ stand things await prov disc called protected little appe better feel \
already outer parent following sure orig invest interest perform listener beh hum techn children organ reason \
within consider react later give either lead equal exist offer government present handler translation once \
continue talk grow mean until market mus example camp based away experience render near country specific along \
women season possible recent equ working least expl making percent past tell builder course late amount async \
looking polit attack means meet thought ports provide research publish having exc problem though points soft \
params actually often prob typ container major yet members comb diff fully images makes except previous american \
added getting doing human girl strong interface throws framework others fund individual future started games \
needs seen filename hope young website study cou community official visit received months anim styles learn fort \
mind opp actions activity vec selected according activ virtual anything hours models joy early easy students \
math vari due factory cannot pred period benef scope utils players among answer walk angular five quality works \
cook everything relations running equals someone changes personal whole needed fight ein writing correct \
development minutes similar taken moment bring trying dialog plot phys phot instead film compet conn death \
widget almost lim environment nov repository taking viol forward crit sender potential published probably weight \
trad constructor transform issues parse stay perfect exact former margin heart rather building questions props \
inside attempt friends campaign raise policy serv training prior outside rob route pour dating shows industry \
coming resources parameter maint hom autom foundation quite blog everyone pretty currently relationship names \
actual cases reader views higher append una progress direction additional numbers companies statement lines soon \
components fill choose assets office provider upon groups github risk woman gets focus multiple deg increase \
commit leave reading padding written living pattern changed feed popular allowed impact elements technology brit \
student average enabled river court parts decision song finally kill drug convert helper sense latest deep reach \
counter lost paper staff facebook oil rules eval contains undefined china playing actor includes avoid operation \
modal production areas operator zen conv argument movie jud choice flex characters regular goal built natural \
calcul associated bytes travel passed recogn hon countries manufact levels looks selector placeholder released \
department properties respond financial strip starting returned adapter systems structure submit mine bon errors \
arguments ensure grad usually customer door plant distance protect gun arrow inform hands offers shape sleep \
shared remember shoot scene allows middle escort objects paint encode layer expert beautiful origin effects \
massage happy finish stuff hidden twitter bootstrap town solution slow customers played existing complex \
analysis english mobile impl leading nice floor redirect capt stage solid meeting dict medical hour books mount \
modern seconds writer cele setup wed attention collect knowledge blood configuration mother trade parents parser \
piece professional practice selection sites messages das atomic fair sales measure plans brief loaded grand \
credit difference fra reports adult split education library calls charge saved positive skin picture videos \
mapping pull pages creating learning patients kids comfort dispatch classes successful ban iterator hair wide \
jobs keys vote theme fine altern destroy generate browser favorite career recommend liter named trust footer \
race physical removed father assign histor nature nation discover exam cool predict sometimes drink tests \
alignment interesting population greater launch band validate figure rank projects poll equipment headers gratis \
partial venue alpha phil coin batch terr paid scient axis maximum birth maybe movement fans moving auf earn \
materials unless coach supported photos pressure teams definition thinking concept daily multi promise vehicle \
organization summer surface workers stories steps skills effective digital intent requests missing located chron \
cards pers records hop requires norm weak places activities expression testing adjust describe operations \
director checked transport girls prices forms initialized construct instruction internet faces devices guard \
delay purchase timeout fish leader bind culture straight confirm spot behavior craft fresh payload transaction \
links cells college sing jump nodes rates owners reject numer binary prev permission although dream income eye \
orders guess reduce como ali emb clip foo rent danger distribution kin depth posts pear album minimum science \
budget truth battle station finished eight overall construction duration agent seven calling rich brain \
insurance abstract volume cursor implementation tit completed mur columns units replace payment factor strength \
boy balance sources amazon eat trigger tro claims ford gift attributes warm negative burn clients pane employees \
partner civil loading cookies strategy radius ahead vertex gay journal quarter cash commercial loader fixed \
applications perhaps reviews wild degree disabled logging jer fan bundle trip upper scroll highest connected \
thus posted runs marketing sie consult sequence requirements alex dictionary folder permissions topic hide \
opening waiting fant male traditional ju central heat schema guest mouse challenge extract mir capacity enh \
psych relative sand serve processing tur reflect identifier monitor patient gain dynamic baby hospital female \
texture farm contents speech thr heavy church whatever resolve updates listen trail prim spread branch extension \
essay hat apache peace minor league football bag managed glass initialize vous het critical execute bes dry wire \
strings matches electric tasks smith agency trial weather destination seeing cancel visual corner transition \
candidate bay enemy pictures labels stick clin born expand raised episode earth external cold finding router \
crow entre observ vac exchange district documents healthy temperature metal asset cars square thanks tick \
experiment presence employee teen delegate beat minute subscribe constants expr species aus cloud traffic \
generation delta chart fragment tags hotel movies steel mixed deck neighbor identity fab toast accounts pitch \
commission remaining pieces registered creation instant delivery schedule documentation hello articles cities \
flo rooms completion stars secure stored annual crime mont conference gender sports navbar approx reply poly \
animal native interval positions bright akt han reverse prompt lets skill wind draft nut kernel blocks changing \
association calc canvas artist ring flat ele standing award manage wrap licensed blank logo python packet occup \
exercise chief coverage discussion sweet segment lie prime phase checkbox quant rub installed dump keeping joint \
weapon examples seed odd kick procedure dataset este animation sounds kid yang rio refresh tips fuel usage \
conversation bean spring locations samples brown stats sector gro chair entities apps ideal deploy validation \
stores communication sheet ordered prepare alternative wil welcome survey decor mel linked sorted priority \
navigation dur cluster trim forget doctor icons entries skip seat rating restaurant absolute cycle versions \
moves coffee modified nie bond coding advanced combined joined broken western smooth merge kom technical drag \
hall resolution picker runtime binding flight mapper fortunately plane calculate medium feedback categories fee \
deleted proof teacher discount appearance styled recommended recipe inputs marker dropdown detect administr \
disable metadata highlight encoding persons notification authority tokens mutable instructions observable \
answers decimal routes commands mesh reward execution abort quiet ratio acts adds animated profit manual motion \
bounds heading currency percentage classic variant visibility walking timestamp creates choices explicit fly \
lists entr coal consumer protocol depart creative modules renderer wrapper targets tip fold sharing controls \
extended embed planet handling battery ray charset nine sending grab frequency depending judge sentence friendly \
accepted songs lake loan descriptor bear ticket assembly channels justice elem hardware jun drivers approved \
snow tweet pel illegal smarty forum tube worker cheap chunk unable nos radi migration advance shopping letters \
signature bird avatar noise salt hen bonus wave algorithm vertical threshold cum quantity scores lon logic \
registration centre sizes jon illustr robot comparison capture checks privacy degrees attached nam winter trees \
fake sad buttons principal wel escape chapter shadow awesome lambda colour adj carbon fixture shell uh multip \
generator compute providers matching mob assigned combat spin spaces patterns tables cream stroke interrupt \
circle votes relation mono rotation lights paths reaction repair nombre hist roman bomb""",
    63: """\
in er on re at st en or th le it an ar al the is es ed et ro as el nd ent id am to of om im il and ur se ex ad \
ch ut if em ol ce od ag ot us un ul for ab um pe tr he lo be con ap ub ass int ly av port ir end de out turn our \
res pt this wh ver age ext os ke rom qu with op up get pro ter com return art ack import est ind str you pl new \
from ant are act class not ord all pr by sh ice ast ok cl ip ide ace ac we public ak ve ath que one name div err \
ign form put les can row ber do self te aw ob app ear cont data your has string so ax def bo ge per add quest go \
function const void set system li ep me ec ph var eth own key ser more use ne old io sa ef fo eng dis true val \
led cre log error null my view list pre arg private tem user read who time man any false value gr no param fig \
about su over ca type son des inter part enc ra pos ng work sp off other ms co ann lock sup date acc bu file iss \
raw year round du line her comm min loc like let load url ref static just result der arch arr als what anc sc \
case kn red fe first word char cent only print mer text its back sub la object start item very php under reg \
struct sum how index http test bs make define right day long rem mp air action util fl br fore ins array exp par \
rel dr input trans order play comp az number col size where ger rec state spec look fr hand most try now break \
point std mod ah pol show current used see help pass down bl label don sm che inv export last event high html cr \
face button ik dist cons att here final del run box model mon way call cal dec num aj query color default java \
sim bel good gu config request ps element person style ident method less expect package ma sur found info post \
sl select qual count inst mit gener px med check open next content car image bool game path cor miss mem search \
sign best code di create service mark press group fin license field ty process main valid img pi report sk top \
free icon real max land build leg message enter node ui table head mov product double place oper db prop iter sw \
program without po option ever assert cap rep api link team second fact vis title ret home left direct ai page \
hip core target arm map level book document local fa float json none format month super bar ln oh met md script \
src pay obj change los ready position bug version init base email conf cur power width update project success \
ram big pop len source dem match unity fun non full board body uint available mt block keep js status instance \
control custom location output height ta ts af ada options click access job address aff including ru account lot \
bit header boolean aut bed temp rest lib mult site values video gl cert cell player total stat clear short \
section done gre func inc rect au mar admin root web opt side column stop client room copy important attr da \
entity step stream active display property center eb area mb light wr plan alt env begin imp win offset empty \
dest btn command vector auto msg window auth general dat emp write move pat vi py esc font token module vo low \
price adv ste den na sort task det patch question abs ao host role dev integer ptr menu pg server grid sql space \
password store save edit send ros mode ev global contact news device cel login media fail black buy delete card \
handle mail ops nav lin watch dir house track je application pack byte wait session cast ny unit fs bad exec \
attribute network nu limit ball decl comment tx description frame draw filter remove dig gen entry buffer war sn \
inf download por white register screen net neg common insert implement ha west stack rate inner tw cd mr si \
graph mc please thread sec phone mo ka connect feature engine tag install cat normal database doc rot failed ba \
term loss dom cas utf resource seg lt cs exit tree fast fit fix inline asc dim join las css debug fn hash flag \
note lang sem align todo profile train rs related cmd category meta channel mat plus lat ja pu road tab tor sys \
sy rev bus san ci tv buf rule logger drop hi primary bi updated uri safe aud ho vs green secret tk hy blue bot \
owner shift xml cache trace desc ted va cam pa hp ga pet star tim edge bin cu ped mas mask zero enable jo master \
mac yes sat reset dt enum ads ni ya boost qui smart fetch ky invalid txt domain flags shop mi arc gi flash sam \
refer sig ups aws warn mes rad eq pin ti ye resp fi scr prefix sea cy sel vin bal guid tu unknown eu lu kr \
warning zip wa sz lab verify pic rand pure sport qt pal pad hel pdf nic alter xi mu hal ctrl dao pri cookie rx \
dot""",
    1: """\
lass alue ption tring ould odel oint ude rray umber ault ength ponse fter ponent ouble ttp cript rite elp erson \
rror ptions ccess ession erty ackage cription ased indows ily uthor itial ected ined olog etail aint atter lish \
uring lication rawing ince imes ains ainer ool aking velop ually ience eger raph oin ags escription uffer akes \
aining usiness ght osition meric chn oute iable ervices opyright ference lected etails ords ases ocation plit \
ething lation abled aving angu etwork ium atri quals rame ules ology iction eturn yles uilder odes riter urch \
ugg ained atur pring ately uction oogle ically ording ired ploy ponents ocial ality oad pons icro viron uted \
atures ope ights uro irl rist uments ands ably erial earch actory ffer elper avig uture iversity ernal thers \
itional ored ecute pository ohn vironment cribe omain ively ead artment attern agn rior ued inate ixed idual \
amework aken obile umer ustr chema allback ourn ipe ades ause uper eneric ignment uary swer ilar rypt ien \
tributes atis amed ilit curity ocal oding rops ements vider fect itted uggest witter ursor ires tml avel iet eme \
uly ional ictionary urther istance icrosoft ogn inding utions amic loor ymbol uation efined aise adio amples \
ensive ilename anks pected inition ised oundation ients urope aign otype nown edef ows imest entic enses ilities \
abor verage avigation illed ustomer ently ving asing aced untime ried weet ided acebook ocol rodu andid lood \
atural stry ceed efore ague plements aves eries imestamp stant wner emory ief oke erman lice lege irectory ables \
pecially iers eline izing icht ando ledge ancial ferences ises ournal oved aul ners ountry alance acters iful \
legate iqu aset igration ndef astic ayers ederal riteria ablish oph endar plete ideos ester olid icker oggle igr \
andler ourse romise aven iance etic ean istor apan iant ians icient ipment ares aries llum ycle chie oub outes \
oring ees azon rote omy ferred alls atement vey lier urt avior ych sembly avy nbsp ailed ography ambda incip \
ological oly prite ining agram enced urance icks aled jango iting atives inq icket utable ixel encies anning \
elta pite ening licit onth sert uple ayment cing uts aling erval avascript ools ycl iring rael rics ails haps \
ivil ums oday uate elling ental omen ospital enge udget thern ovie ulate ione rought acement raphics awn aders \
iforn ells ipped imple anded aming ibly iate ette ancy ifornia iding arily rial ecause rench azing orge unday \
annels ellig utive overn arty oded umpy ened eds lich isions criptor ugins idents etimes elay qli irit pped oms \
aturday ometry ayload opping ously atically uesday esome embers ican ulti oes idence iation imately undred uman \
imated oles reshold entication enty ursday xis arks plies ventory rie rier ige rian iger eder anned inton inese \
ashboard cludes atever olar roke covery ocity itchen ulations vention allet uing initely apse atisf ictures \
itation ission usion iki iced ategor yled etadata ady oration ertain voke ror cpy ete endregion ston urer aked \
ulated olic ifying orrow acks vement onym rees eler plier atively olver isation okes allel ensity pects ercial \
olicy phere ersistence urr iverse izations cheme itness emic qrt iminal anager iques essor akers osen izable \
arden aine udd itect levant ataset ronic istrict elen icip icate orry entials uler pth elligence unes agen \
essions ugar anging amin ilters ktop olly iber amm endo verter ordinate olved ordinates izz ervation edom ceived \
riority riage ashion ipeline encia uer etro arian redict achment uzz abin aviour ipes istan ancing amente acking \
oon atile xff erialize oods gment pective ologies iece atches oving ius ania uous apsed agraph eras oted lers \
herit iture uite isters edy apes crete utex ailure illing ront oston orney stances icago rypto clipse estroy ilm \
unately lyph apers iliar asket resents napshot ifies ookie icians icious reme uj uclear iostream apy umbn acker \
icken bling enda okens ooter onymous ournament azz lette aks igure esso estic aze ultip uplic azine phan ested \
nergy enger olo alty odies etween adian ucky erge oves icated oliday arios umin etailed agger aption aped merce \
retch enance outube ategy igital abet ixels gnore otten ials uen obby avigator stdio agination iat avigate uan \
iciency uries amento uke eper stitution oker iner alian ansion urface ulator anguages ulture enerated ische amos \
ectors uting itory rase gers unched ibr raq oor osis lications asis reek pping oking arity ollapse plet oked \
unte ateur orse estival ongoose iento igan forcement oul ishing folio elines acher umbnail pleted andon emies \
itz aje reh isting iot cohol adas orno appy ucket izar ression ega acked istant cean culate unning agers uilt \
idential tle icio puter esterday aret ingly encing thead iones ifer igma ika useum oting omething aters ungen \
iddleware otation ublished uent zt kins ancer ogen oster avity flater emale asts ivalent umps uits urers aching \
ifiers apture imize pling elly itors ection anvas iences osa ocom ateway posure eed iser iche riends aser \
alendar inecraft argo rical scription atted dux ritten riting shal ultiple izers ematic uling iti ders riterion \
ered itar ousel iams liament iana aciones kdir ikes ician aga iden upported ctors ailability ovies iments rovers \
sters umeric aya igit inations agra ova ographic ometimes aza aman ixture uspend abil aron epend icted agic""",
    17: """\
ation ame ction ublic ity ight ype ert ial ies ize iew ject yst unction ystem ount ite ome aram ong ated uct ork \
ress ory ition ance ild alse ake ivate atch ence atic ous olor ound essage ations ield ings urre ator clude irst \
ick roup rop nder ource ual ical uth ays urrent utton ose ater reate oll yle ates ely inal quire indow lement \
pect ove ception ader atus itle ervice ethod ute ody ific ors igh ating idth reak ule ement ush ied ument ayer \
ues ople ient lection ock ower ics ices reat ious irect ream ible loat ector opy ier ote ular arget ait ersion \
ateg ities uff ments ough orld ood uch ative ility eter ayout ager ures ets ify itt ustom ocument ql enu cept \
clud ution ason uild ized iver ouse uto igned ines ollow icense ature ister roid ared ited ife lete oun ender \
ational ists oken amespace ffect ync olean odule idd ider ween ypes ision nection ename ather alth ified iness \
ives ideo oot itor ivity assword uck ivers ene icle idget uration ization ategory lobal ilter tings iven oto ift \
ailable utes irt ftware ond chool ism ane ingle aterial iled creen andom atabase ived ading cale iving ency \
ential aster nect ialog ards imit ources otal ique ittle ences anel ched ification ots eters ories aces ogle ior \
vious acter gress ither ormal oney ublish ination atrix uccess istory arse annel ird ety anguage ension orage \
arge acy plement adi erved upport ipp ottom erver ament reated idden omb imal irection apter outh irtual argin \
ulation quired ention ilt pecial ators etch ica egin ances struction ouch ajor uest ifier ols ured omic structor \
ounds apper imary imer izer ibility arning ograph unch isk aper olution udio itter aring eral inary ario avor \
imum ished ills iddle ino andle atform ison ides ury ocus itive imate amera plied agement ias leep ony ites \
apping ugin iles heet stit emplate anged essages reet istr ube iple ising ensor achine iment icture ithub ales \
ached ught ume itude yl ival olve pha asure cket uel pression rowser acity adius istration etime aved clus ural \
oom ria undle atal esh ato stract icles quence aker omet cret reen ysis odo edia igger peed ille emy acing istic \
ocket thon adata attle ensions ering ufact arrant uge alled ida izes ington irth rown utor anced udent anner \
istry ancel ersist uster riend ynamic refix aily urrency ctions inger quare ango amily rea ido ategories atory \
ellow ador erry ernel imation mitted ombre urity anges aste ados istics ula afe ipping apped ura acket agma \
elcome inder antity iler acion adow idad erve itions otion uario olt inue illa ita atio scribe otes pio ito ongo \
ffff atar asy iny ondon idge ivo ivery ona ente leted ields pper ifest ifications ircle icial ena iform emon ugh \
allery anted jection andard stitute udo atalog inct igo conds acle ola alar iling otos endor uda olf orizontal \
urred anta clusive ummy iro ulo oth chedule clusion iel ista igin ema ificate osh isco aml trl amage otor iva \
iteral blem ono cluded uce ila ipher apon cluding oria redit peat eto iginal arry ynam usic eting ication eno \
formance parator""",
    47: """\
lic that elf was have will but else his they pan their which using when include been some there also than them \
into need then may people should bet after she want require two know every fil find these even did through again \
does before well years pres many child summary such think much som follow each support same made world take \
between ten must say information week response sol still cour range nil really both component poss too great \
life three law spe tri care effect throw mill business required never hard intern small given always got prom \
die pen won prof cost company health days initial online design bro school love men copyright condition occ \
appro family water times four far bas results mass length kind author express software why single anal rights \
sent money record close special city ben hold pot para today story mom review switch above cover whether fre \
large fac created deal services details items social food connection character material below christ comput \
claim night pick dam tax john terms apply template subject history users mot products border live variable cut \
fire region quick represent series hot original bill elect front language types states accept random respons hit \
returns friend clean holder tre god issue sal half simple nothing mor share pie jan however events panel fall \
vol features collection member foot sus push coll article via complete reserved party music speed conditions \
lower educ six security north energy hor callback third har mag release south imm unique oct aug memory extra \
wrong settings sch parameters national performance apr alert google mid sound contract mut included van receive \
bre notice standard internal cross platform force sen tool methods sil scale score obs windows park damage \
driver stock dead modify machine functions mis storage touch serial seek otherwise contr comments bank sample \
sold priv cop matrix king directory management camera county sale dark east nor club loop computer pas \
international mix letter drive cit photo gold strict pub street capital exists brand basic syn constant gas pow \
rock wall sun limited foreign tour ajax variables gar cart purpose sin pointer mil pod socket jack audio fitness \
symbol mock closed failure generated cos tele colors micro mart spr signal tom notes mal hol guide mos fat dos \
clock vir motor radio gam timer dan union slot mad tok nom thank tile aux optional lord gal snap atl magic goods \
shipping hero sensor authors tar hex spl""",
    10: """\
fam happ coun gover proble says distrib doesn sever didn understand pract econ took treat believe isn entire \
energ obt teach investig chall purch beaut seems fem longer crush significant particip addition strateg clo \
problems milit dav useful prote saw approach saying himself couple establish goes threat serious sens yourself \
quickly frequ election democr lives afr situation completely dise opportunity influ tried gives easily temper \
wants obtain lack demon independ alleg costs billion increased improve princip programs convers feet highly guys \
doll doub mechan compared bey pul hundred demonstr instit largest individuals crusher scre correspond developed \
jew reasons powerful arrest variety medic larger squ society providing determine feeling spend disease \
responsible suff definitely families biggest polic assess economy helps separate protest majority compliance \
batter miles benefit flor nicht investigation bath vill produced constit surround weekend extremely agreement \
trend violence shut prison republican leaving cancer advantage truly furn officer opinion automatically minister \
learned innov established gather officers advis assume businesses parties relevant purs senate coff impress \
murder solutions crash husband institute offering dut lif trav spending influence policies muslim loved decide \
citizens photograph maintain experienced explain bund religious rencontre shooting presented helping \
opportunities funds swe turns faster combination brother audience standards island communities honest arab \
talent funding hearing bought fighting hers marriage represents seeking injury leaves adopt twice auch bott \
helpful massive measures worse drugs proposed winning debate tough reduced clim conserv wonderful fif causes \
collabor dollars prostit developing intelligence famous nuclear crisis plenty thoughts beach advent gratuit \
democratic dangerous accident myst harm leadership evening tun econom architect abuse breath sob hundreds leads \
challenges novel hun journey debt african passion specifically sitting assault vul millions responsibility liqu \
worst differences casino signs till elev relax surg begins thick numerous complaint eating plastic greatest hate \
pand nur married cath dedicated advoc blow exhib trouble waste passing scientific pale fellow practices figures \
proud television recorded fees totally deals neighborhood youth techniques victory sind desire adults supporting \
teaching machines importance taste initi humans inspir readers domestic cultural surprise""",
    2: """\
differ includ writ exper incre eas offic seem belie told complet happen redu indiv deter vot invol indu necess \
clos applic compl signific infl recomm difficult effort itself evid regard integ themselves candid wasn accom \
experi repl inj extrem contrib communic directly introdu began achie became wrote surpr repe determin involved \
considered gave decided consist relig knew meas happened looked myself thous proced brought appropri announced \
agreed emerg challeng opin surv killed exerc described scen explo restaur suffer couldn hous assum affect advant \
encour distr oppos strugg appears obvious instanceof followed slight foc excell traff wouldn tend applicable \
citiz remains died legis showed happens kept satisf easier whom attacks knows meant toward efforts offered \
helped incor occas becomes sich smaller conflic belong attract seemed guar reli redistribute declar unf androidx \
continues incred appeared decre critic migr willing propos prepar purposes situ afford supposed apparent \
governing concent slightly conven emot circum served sust properly noted oppon becoming revealed alleged doubt \
defend concerns intended comfortable allowing tells decades determined substant worry sudden defe stated follows \
sides achieve discovered cref committed decisions spokes bigger explained familiar entirely expensive isinstance \
experiences arrived introduced manner believed perman launched telling concerned herself carried voters victim \
treated interests suggested sympt nue acknow substantial pregn promote affili significantly transl succeed \
excited relatively closer corresponding lived occur obtained dropped wearing motiv spoke prosec receiving corre \
oblig favour victims brings correctly fundament happening exceed hasn consequ paying arrested replaced delivered \
werden compreh increases orphan diam vast""",
    11: """\
rou pon ther rit said trib ride ends til rib beg tribute erg chang might alf cul pare pond million conc came \
pend aid cer went comes wor rag aur deb circ distributed medi pret cult rap favor ald profession wanted matter \
takes cout respect strap implements especially ming cape prevent stre witch weeks pir charg held hood worth \
necessary ober ris wash leaders hab inn proper reve rim mention deliver zu eyes wish growth imag von ran sequ \
heard pain ideas elle hear carry conduct ella nap laws economic ding dro vest bul arts plates meaning wife firm \
alone agree yield optim essential lig berg assist torch mach particularly gone hill lands produce tal django pun \
yan frag zi een fol forces cin stress starts dress partners continued mist terror kan ils schools raz integr \
overs rac haven cher hus urb jes criminal bert investment isl fav spect oz lor forced sect wid hyp avec covered \
daughter anda oral wear faith animals holding diet holds rise listed mostly prepared mort pars asking charges \
burg tight committee acad homes mental adapt cup identify intr uma prefer competition rum possibly plants mouth \
truck ende copies rapid efficient fell plays organizations typically sav ridge selling cock vehicles extr \
chemical orient permit supports solve gon outs arms housing markets recover relationships lift rog wealth dish \
ku confidence films reb mond estate bare facility tested alo kes dogs stim bringing desired virt""",
    14: """\
comple govern fri enough trump employ become certain impro together several across associ discuss police europe \
russ asked further concern consum enjoy president behind separ simply political microsoft america vict various \
mich sept republic march anyone provides wonder april sou evidence recently german chance creat september august \
designed military japan treatment speak morning friday december november india federal earlier david prem \
throughout canada dans exactly paul towards nearly monday california immediately giving interview london safety \
beginning broad cong sunday celebr officials talking guy servlet demand european illuminate benefits compar \
increasing indian suit successfully beyond james studies growing certainly poor british amazing michael congress \
interested erot supply texas australia chinese magn russian administration french previously understanding fear \
pros dies reality generally despite regarding goals rare christian spirit therefore showing thousands defense \
excellent council planning protection applied frank century susp labor clearly factors mex attend advice \
independent enumerable eventually florida france franc lou kitchen eine driving germany mais weapons climate \
senior christmas watching africa operating proceed chicago outlet putting apart shock japanese retail residents \
jose absolutely executive peter domin trading fashion candidates virgin mike authorities freedom witness \
processes jim politics forg martin experts mining granted detailed fourth researchers buying louis canadian \
impossible conflict speaking paris environmental statements mexico secretary hier laugh veter mari filed""",
    3: """\
lick jav dif extends oy ese ought resent javax oud unic elt posed sizeof wards foreach larg cred suggest tempt \
rew elves oder likely elif indic compan ores asks leased airs ello isset och reported etc subs veh inde missions \
specified uz endl typedef arter rapper urg sched readonly requ ordin pragma aby chor avi utter eros rais igen \
worked felt plt turned rupt whose lying emo stylesheet nullptr ett zer eller aria remain pared aver rollers \
spent accur ears upt ostream alm advert cores oma typeof omin goto antic ander mys sett poses ela localhost \
appropriate posing abilities pute numpy onto inds restrict typename placed quis rend justify fprintf limitations \
puts appoint prise kwargs jour mentioned ounce elim mysqli tbody icing formed nums nonatomic identified issued \
outing yr notation quir charged claimed elseif sprintf argc chosen aire ignored anz prove onclick cient strlen \
simp nen mente picked""",
    31: """\
ing ion ay ess ill ult ang ont ans ell vent ich ens ton ark vel cho ash ven ask rol roll wo ek org und cond ren \
span gram mary ale thing vert formation ware rows ground come android args allow tra tes orth tot ending iron \
lex lean ken ether mission une ability pose quote req amb ze adding vers lik eff roy ana files expected ster unt \
known background angle words verse defined sell queue boot alloc uses sets flow fields alle username ship fault \
dog ham bottom chan visible legal reference prec upload addr chat setting shot dates editor cha wer ini ki wood \
pair bound grade anti pool tools kit detail voice bur sym apple transfer lee scan zone remote chain plugin \
compare mess bits hook tail stone ping ignore lots vision rain buff gray sync abb""",
    51: """\
ic ue ew ck nt ht ata ld ff pp dd rr ie ll ia ss ov ml nc ww unc tn uf uc rg sg ee ux rl np oo ks df ama uit isc \
ios ii mm hr xy xx ua oe ls yy fg bc iam hs gt pm aa sd tt dc ims kt xf bb cg cm wd eo eps vg cmp vc nn dk pd tc \
sb xb rf xc dm wp lc rm dl wx wt vt dp zz asm rv mysql rb gpio fb fp lm bn usb tl lg xs uv lp phy bt""",
    27: """\
ort iz ore ain ment able ere ave ive ard ach ary ple ally ink lect ug fer ange ry ade ages ank ner heck ning ful \
ole ting pace aph ember rough roller lose orn ler sole lear ward lease lob ott vice bers mand ook older ved ness \
ung ric ways ves ply apt ling ava ones ging ley gle lem lev anch umb ged aging ago ges vas za wise gy ox gor tee \
lay depend gest ker aren ded ji ville nel gin cle bor owl asi peg dex sed zo""",
    19: """\
ate ers urn ith ect ile ine ode ime ure ire oid ust ail ull erv ery ener ents ions ern pec ys duct ise yp ense \
cess stance ump ample wn itch alk ache ants yn els ape ado tract ration ero endif ons cope ours resh enn posit \
icy irm raft iff unk iod ij aged yc ici annot dated ili anger ries uy tern erm tries ech osp ctor ante ters bum \
ani ano agon ora argv usr chant ima arp xe heel idade xa ami aba pile idi vd""",
    59: """\
ou ct ig iv ow ist ri oc ost og ib ud ft eg gh ble amp rc vid ces rid www xt era eh ips uk rt sv pc pur cp gn cv \
ae tf rd ih usa kg bd ses ko cf ez dy kl lan isa soc hd mg xxx ea dx""",
    7: """\
href unsigned extern exports appear enumer contain shown aware compat datetime fmt opened stmt instr lemma curr \
filled opts caught entered focused confirmed requested affected implemented textarea visited feat pressed""",
    12: """\
june july january october israel obama february tuesday saturday thursday wednesday russia robert england donald \
scott george boston carol enumerator jesus thomas chris johnson richard jeff jones william""",
    55: """\
orm cc tp ix td eta uid https ns ids tmp ds gb gs idx fc fd cb vm ws fx bg xd cpp pid lf""",
    49: """\
ase ict ym ats oci ina irc aps erc ico ams ocr gnu asic ota ira uis uil imo ems""",
    9: """\
eld urs aly hib oman ying bing chen duc rey abe sey ches plex acer eli stein""",
    43: """\
him stud rece aim provided idea rip shall uns basis termin incident rat tod din pac""",
    25: """\
ree abel ish ames ars pty ced ital ari ike ney zy ara ala rome""",
    8: """\
austral kore clinton thom americans iraq korea angeles democrats haw syria carolina republicans""",
    6: """\
moved containing analy reached occurred stopped performed feels suc repeated inflater anywhere displayed""",
    46: """\
provid united university york jul theory univers sac ltd""",
    23: """\
printf ended ctx oi ctr webpack ctl tpl pts""",
    34: """\
wom partic particular agre warrant implied warranties caused""",
    42: """\
saf huge warranty rout corpor grat pil voc""",
    33: """\
uss ipo ati ipl ipt cdn""",
    29: """\
ian arn ross ron hz""",
    13: """\
greg iran anna rick""",
    39: """\
dst sock evt distinct""",
    57: """\
nes isis eur""",
    48: """\
merchantability eif ceo""",
    35: """\
ais oss""",
    16: """\
ssion dition""",
    21: """\
ral""",
    30: """\
washington""",
    50: """\
nfl""",
    18: """\
referred""",
}

# Runs of punctuation, some after a space, some with the line feed that ends them.
# fmt: off
RUNS: Final[tuple[str, ...]] = (
    ";\n", " =", "--", " {", ");\n", " (", "//", " \"", "**", " }", ")\n", " {\n", ",\n", " *", " '", " <", "()",
    "----", ">\n", " $", "->", "==", "=\"", "****", " //", "(\"", " }\n", " -", "::", " +", "('", "..", "\",", " [",
    ":\n", "--------", "{\n", "',", "</", "}\n", "();\n", " :", "__", "##", ").", " @", " =>", "))", "********",
    "====", " /", " &", " ==", ".\n", " */", " .", "']", " #", "['", " </", "\"\n", "($", "),", " _", "////", " */\n",
    "()\n", "',\n", " !", "\">", "\",\n", " |", "----------------", "\":", "\");\n", "####", " >", "')", " )", "\";\n",
    "\">\n", "========", "****************", "\")", "]\n", "];\n", "].", " ?", " !=", "):\n", "().", "(\n", " &&",
    "';\n", " %", "**\n", "++", " ///", "/*", "));\n", "://", "...", " <<", " \\", "],", "='", "\")\n", "////////",
    " },\n", " ,", "');\n", "={", "))\n", " --", "[\"", "((", ".\"", "':", " *\n", ");", "../", "'\n", "],\n", "){\n",
    "[]", " __", "')\n", "<?", "),\n", ",\"", "\"]", "########", " ||", " /*", "--------------------------------",
    " +=", "());\n", "._", " );\n", "][", " ->", "></", " (!", "(),", "================", " /**\n", " `", "},\n",
    " \"\"", " });\n", "):", " :=", "********************************", " ($", " ()", "./", " )\n", "/**\n", " ((",
    "><", "*/", "').", "\").", "','", "....", "////////////////", "\"></", " ===", "(&", "\\\"", "();", "____", "},",
    "())", "=>", "\",\"", ">(", "({\n", " [\n", " ]", "//\n", "({", "${", ")(", "())\n", " (\n", ".$",
    "################", "};\n", "<<", ">>", "++)", "])", " },", "(_", "!--", " ...", " ['", "])\n", "]);\n", "([",
    ".,", "///", " *)", " ;", " />\n", " >=", " };\n", " <=", "../../", " })\n", " './", "()->", "\"))", "%%", " ),\n",
    ",'", " \"\\", "!!", "});\n", ":\"", "{{", "\"\"", "(){\n", " \\\n", " []", "================================",
    " **", "\"><", "\"/", "(),\n", ".'", " <?", "=$", " \"\"\"\n", " ],\n", "\":\"", "\".", ":(", "*/\n", "/*\n",
    "'),\n", " $_", " '/", " ''", " ?>", "('/", "}}", "\\\\", "[$", " ++", "[:", " '@", "(!", "++)\n", " (\"", " <!--",
    " ::", "++;\n", "----------------------------------------------------------------", "('#", "})\n", " \"/", " ${",
    " >>", "(\"#", " +\n", "':\n", " -->\n", "/**", " \",", "@\"", "'=>", "*)", "'))", "__(", " -->", " '<", "'];\n",
    " }}", " ?>\n", "(:", "////////////////////////////////", ">();\n", ".</", "():\n", " ~", "\"),", "________",
    "`\n", ")->", "........", "\"));\n", "($_", " =\n", " \"<", "=\\\"", "(*",
    "****************************************************************", "(-", "'],", " /**", " []\n", "']['",
    " \"\"\"", "=\"<?", "(\"/", "('.", ").\n", " [[", " ('", " !==", "'],\n", " [\"", " ;\n", "---", "'.", "(\"%",
    "']\n", " \\<", "\"),\n", "}/", "=(", "():", "'),", ")).", "''", "?.", " (*", "\"/>\n", "=\"#", "\":\n", "');",
    " {}", "\\/", ",$", "?>", ")*", "?:", "]=", ".__", "}>\n", ":'", "!\n", ".*", "{\"", "')->", "(\"\\", " '../",
    " $(", ")));\n", "_.", "#\n", ",-", "################################", "\");", "]]", "(()", "'])", "\";", "->_",
    " ]\n", "------------", "+\"", " '\\", " \"$", " {\"", " ..", "];", "?\n", "%%%%", " .=", "]['", " {'", "}</",
    "})", "\")]\n", " \"\";\n", " (_", "\"))\n", ":@\"", " $('#", "(__", "\"].", "}`", ")]\n", "\"+", ">'",
    "************************************************************************", "\\<", " {}\n", "*\n", ")/", "\\\n",
    "]:", "(\".", "=\"{{", ")),", ">&", "(`",
)
# fmt: on

# Code points that are one token each. Below: blocks of 64 code points (named by what stands before their
# last six bits) of which none takes more than two tokens, and more than three.
ONE: Final = """\
80 92 a0-b7 b9-c4 c7 c9 cd-ce d0-d1 d3 d6-d7 da dc df-f6 f8-fd 101 103 105 107 10d 110-111 113 119 11b 11f 12b \
130-131 142 144 14d 151 153 159 15b 15f 161 163 165 16b 16f 171 17a 17c 17e 1a1 1b0 219 21b 259 275 300-301 3ac-3af \
3b1-3b5 3b7-3bd 3bf-3c7 3c9 3cc 402 410-415 417-418 41a-424 426-427 42d 42f-44f 451 456 5d0-5d1 5d3-5d5 5d7 5d9 5dc \
5de 5e0 5e2 5e8-5ea 60c 623 625 627-63a 641-64a 64e-652 67e 6a9 6af 6cc 902 915 924 928 92a 92e 930 932 938-939 \
93e-941 947 94b 94d 9a8 9b0 9be-9bf 9c7 9cd bbf bc1 bcd d4d e01-e02 e04 e07-e08 e0a e13-e17 e19-e1c e1e e21-e23 e25 \
e27 e2a-e2b e2d e30-e35 e37-e39 e40-e41 e43-e44 e47-e49 e4c 17b6 1ea1 1ea3 1ea5 1ea7 1ea9 1ead 1eaf 1eb7 1ebf 1ec1 \
1ec3 1ec7 1ec9 1ecb 1ecd 1ecf 1ed1 1ed3 1ed5 1ed7 1ed9 1edb 1edd 1edf 1ee3 1ee5 1ee7 1ee9 1eed 1eef 1ef1 200b-200c \
200e 2010-2011 2013-2015 2018-201a 201c-201e 2020 2022 2026 2030 2032-2033 203a-203b 2082 20ac 2122 2190-2193 2212 \
2500-2502 2550-2551 2557 255d 2588 2591 25a0 25ba 25cf 2605-2606 2634 2640 2665 266a 2714 2800 3000-3002 300a-3011 \
301c 3042 3044 3046 3048 304a-304d 304f 3051 3053-3059 305b 305d 305f-3061 3063-3064 3066-306b 306e-3070 307e-307f \
3081-3082 3084 3088-308d 308f 3092-3093 30a2-30a4 30a6-30a8 30aa-30ab 30ad 30af-30b0 30b3 30b5 30b7-30bb 30bf-30c1 \
30c3 30c6-30cb 30d0-30d1 30d3-30d7 30da 30dd-30de 30e0-30e1 30e3 30e5 30e7 30e9-30ed 30f3 30fb-30fc 4e00 4e07 \
4e09-4e0b 4e0d-4e0e 4e13 4e1a 4e1c 4e24 4e2a 4e2d 4e32 4e3a-4e3b 4e48-4e49 4e4b 4e5f 4e66 4e86 4e8b-4e8c 4e8e 4e94 \
4e9b 4ea4 4ea7 4eab-4eac 4eba 4ebf 4eca-4ecb 4ece 4ed6 4ed8 4ee3 4ee5 4eec 4ef6-4ef7 4efb 4efd 4f01 4f18 4f1a 4f20 \
4f46 4f4d 4f53 4f55 4f59 4f5c 4f60 4f7f 4f8b 4f9b 4fa1 4fdd 4fe1 4fee 500d 503c 505c 50cf 5143 5148 5165 5168 516c \
5171 5173 5176-5177 5185-5186 518c-518d 5199 51fa-51fb 5206 5217 5219 521d 5229 522b 5230 5236 524d 529b 529f-52a1 \
52a8 52d5 5305 5316-5317 533a 5341 5348 534e 5355 5357 5373 5386 539f 53bb 53bf 53c2 53ca-53cb 53cd 53d1 53d6 53d8 \
53e3 53ea 53ef-53f0 53f3 53f7-53f8 5408 540c-540e 5411 5426 542b-542c 542f 544a 5458 5468 547d 548c 54c1 54c8 5546 \
554f 5668 56db 56de 56e0 56fd-56fe 571f 5728 5730 573a 5740 578b 57ce 57fa 5831 5834 586b 589e 58f0 5904 5907 590d \
5916 591a 5927 5929 5931 5934 5973 597d 5982 59cb 5b50 5b57-5b58 5b66 5b89 5b8b-5b8c 5b9a 5b9e 5ba1-5ba2 5bb6 5bb9 \
5bc6 5bf9 5bfc 5c06 5c0f 5c11 5c14 5c31 5c40 5c55 5c71 5c81 5dde 5de5-5de6 5df2 5e02-5e03 5e38 5e73-5e74 5e76 5e7f \
5e8f 5e93-5e94 5e97 5ea6 5efa 5f00 5f02 5f0f 5f15 5f20 5f53 5f55 5f62 5f71 5f84-5f85 5f8c 5f97 5fae 5fc3 5fc5 5fd7 \
6001 601d 6027 603b 606f 60a8 60c5 610f 611f 6210-6211 6216 6237 6240 624b 6253 627e 6280 6295 62a5 62c9 6301 6307 \
6309 6362 636e 6392 63a5 63a8 63d0 64ad 652f 6536 6539 653e-653f 6548 6570 6574 6587 6599 65ad 65b0 65b9 65cf 65e0 \
65e5 65f6 660e 6613 661f 662f 6642 666f 66f4 6700 6708-6709 670d 671f 6728 672a 672c 673a 6743 675f 6761 6765 677f \
6784 6790 679c 67e5 6807 6837-6838 683c 6848 68c0 6a21 6b21 6b3e 6b62-6b65 6b73 6bb5 6bcf 6bd4 6c11 6c17 6c34 6c42 \
6c5f 6c7d 6ca1 6cbb 6cd5 6ce8 6d3b 6d41 6d77 6d88 6e05 6e38 6e90 706b 70b9 7121 7136 7247-7248 7269 7279 7387 \
73af-73b0 7403 7406 751f 7528 7531 7535 7537 753b 754c 756a 767b 7684 76d1 76ee 76f4 76f8 7701 770b-770c 771f 77e5 \
7801 786e 793a 793e 7968 79c1 79cd 79d1-79d2 79f0 79fb 7a0b 7a0d-7a0e 7a3f 7a7a 7acb 7ad9 7ae0 7aef 7b11 7b26 7b2c \
7b49 7b7e 7b80 7b97 7ba1 7bb1 7c73 7c7b 7cfb 7d20 7d22 7ea6-7ea7 7ebf 7ec4 7ecf 7ed3 7ed9 7edc 7edf 7f16 7f51 7f6e \
7f8e 8001 8003 8005 800c 8054 80fd 81ea 81f3 8272 8282 82f1 85cf 884c 8868 88c5 897f 8981 898b 89c1 89c4 89c6 89d2 \
89e3 8a00 8a08 8a18 8a71 8aad 8ba1 8ba4 8bae 8bb0 8bba 8bbe 8bc1 8bc4 8bd5 8bdd 8be2 8be5-8be6 8bed 8bef 8bf4 8bf7 \
8bfb 8c03 8c61 8d23 8d25-8d27 8d2d 8d39 8d44 8d77 8d85 8def 8eab 8f66 8f6c 8f6f 8f7d 8f91 8f93 8fbe 8fc7 8fd0-8fd1 \
8fd8-8fd9 8fdb 8fde 8ff0 9000-9001 9009 901a 901f-9020 9023 9053 90ae 90e8 90fd 914d 91ca 91cc-91cd 91cf 91d1 949f \
94ae 94fe 9500 9519 952e 957f 958b 9593 95a2 95e8 95ed-95ee 95f4 961f 9633 9646 9650 9662 9664 96c5-96c6 96f7 9700 \
975e 9762 97f3 9875 9879 9884 9891 9898 989d 9996 9a8c 9ad8 9ed1 ac00 ac04 ac12 ac1c ac70 ac8c acb0 acbd ace0 acf5 \
acfc ad6c adf8 ae00 ae30 b098 b0b4 b294 b2a5 b2c8 b2e4 b2f9 b300 b3c4 b3d9 b418 b41c b4dc b4e0 b4e4 b514 b77c b798 \
b7ec b825 b85c-b85d b8cc b958 b978 b97c b984 b9ac b9cc ba54 ba74 ba85 baa9 bb38 bbf8 bc84 bc88 bcf4-bcf5 bd80 bd84 \
be44 c0ac c0b0 c0c1 c0c9 c0dd c11c c131 c138 c158 c18c c218 c2a4 c2b5 c2dc-c2dd c2e0 c544 c57c c5b4 c5d0 c5ec c5f4 \
c624 c640 c694 c6a9 c6b0 c6b4 c6d0 c704 c73c c740 c744 c74c c758 c774 c778 c77c c784-c785 c790-c791 c7a5 c7ac c801 \
c804 c815 c81c c838 c870 c8fc c9c0 c9c4 c9f8 ccb4 cd9c ce58 d06c d0dc d130 d134 d2b8 d2bc d558 d55c d560 d568 d574 \
d638 d654 d658 d68c fe0f feff ff01 ff08-ff09 ff0c-ff1b ff1e-ff1f ff3e ff5e ff65 ffe5 fffd"""

TWO: Final = """\
24-2b 2e-3a 3c-3d 40 43 5e-5f 7a-7b 80-82 84-86 88-89 91 94-99 9c-9e c0-c3 c5 138-141 143 145-151 153-156 15b-15d \
15f-165 167 16d-172 177-181 183-184 188-18f 191-192 194-1a1 1a3 1a5 1ac-1bc 1c1 1c4 1c8-1c9 1ce-1d0 1d4-1d5 1d9-1dd \
1e1-1e2 1e4-1ef 1f1-1f2 1f4-1f5 1fa-1fe 200-203 207-20d 20f-210 219 221-223 226-22a 22d-237 23d-243 247 24c 252-25d \
260-263 266 269 27b 27e 2b0-2b3 2b5 2b7-2b9 2c2 2c4-2c5 2ca-2cb 2cd 2cf-2d0 2d3-2d4 2de-2e1 2e3 2e5-2e7 2e9-2ea \
2ef-2f0 2f2-2f3 2f6 2f8 302-306 30a-30b 315-31e 320 324 326-327 330 332 336 339 341 343-344 34a 34c 355 358-359 3c2 \
3f8 3fc-3ff"""

THREE: Final = """\
450 45c 54c 642 68c 6c4 740-77f 78b 7c0-7ff"""
